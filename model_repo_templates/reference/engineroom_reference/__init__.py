"""engineroom's reference runtime: transformers on CPU, in float32.

It stands where an engine would, so that everything around the engine can be tested without a GPU.
It is not TensorRT-LLM and says so in every log line. Weights are dequantized from the exported
checkpoint, K and V go through the checkpoint's scales; activations stay in float32.
"""
