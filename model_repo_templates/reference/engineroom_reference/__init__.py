"""engineroom's reference runtime: transformers on CPU, in float32.

It stands where an engine would, so that everything around the engine can be tested without a GPU.
It is not TensorRT-LLM and says so in every log line. Weights are dequantized from the exported
checkpoint, K and V go through the checkpoint's scales; activations stay in float32.

    runtime     the thread, and what a caller sees
    validation  what a request may ask for
    scheduler   who runs, waits and is paused
    blocks      paged KV-cache accounting and block reuse
    sequence    one request and its answers: text, stop words, chunks
    logits      bias, temperature, penalties, bad words, min_tokens, masks
    sampling    top_k, top_p, seeds
    guided      JSON, schemas, regex and grammars through llguidance
    model       forward passes; `dequant` reads the weights

Computed: all of `runtime_api.Request` except beams, best_of above n, LoRA, media, top_p_min and logits
post-processors, which are refused by name. There is no speculative decoding.
"""
