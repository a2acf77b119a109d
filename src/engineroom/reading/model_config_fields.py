"""Fields of Triton's ModelConfig and their protobuf kinds, as data.

Read from `model_config.proto` of triton-inference-server/common; a test compares it with the
descriptors of the installed client. `*` marks a repeated field; a map is a repeated entry message.
"""

from __future__ import annotations

ENUMS: dict[str, tuple[str, ...]] = {
    "BatchInput.Kind": (
        "BATCH_ELEMENT_COUNT", "BATCH_ACCUMULATED_ELEMENT_COUNT",
        "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
        "BATCH_ITEM_SHAPE", "BATCH_ITEM_SHAPE_FLATTEN",
    ),
    "BatchOutput.Kind": (
        "BATCH_SCATTER_WITH_INPUT_SHAPE",
    ),
    "DataType": (
        "TYPE_INVALID", "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64",
        "TYPE_INT8", "TYPE_INT16", "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32",
        "TYPE_FP64", "TYPE_STRING", "TYPE_BF16",
    ),
    "ModelInput.Format": (
        "FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW",
    ),
    "ModelInstanceGroup.Kind": (
        "KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL",
    ),
    "ModelInstanceGroup.SecondaryDevice.SecondaryDeviceKind": (
        "KIND_NVDLA",
    ),
    "ModelOptimizationPolicy.ModelPriority": (
        "PRIORITY_DEFAULT", "PRIORITY_MAX", "PRIORITY_MIN",
    ),
    "ModelQueuePolicy.TimeoutAction": (
        "REJECT", "DELAY",
    ),
    "ModelSequenceBatching.Control.Kind": (
        "CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_READY", "CONTROL_SEQUENCE_END",
        "CONTROL_SEQUENCE_CORRID",
    ),
}  # fmt: skip

FIELDS: dict[str, dict[str, str]] = {
    "BatchInput": {
        "kind": "enum:BatchInput.Kind", "target_name": "*string", "data_type": "enum:DataType",
        "source_input": "*string",
    },
    "BatchOutput": {
        "target_name": "*string", "kind": "enum:BatchOutput.Kind", "source_input": "*string",
    },
    "ModelConfig": {
        "name": "string", "platform": "string", "backend": "string", "runtime": "string",
        "version_policy": "message:ModelVersionPolicy", "max_batch_size": "int32",
        "input": "*message:ModelInput", "output": "*message:ModelOutput",
        "batch_input": "*message:BatchInput", "batch_output": "*message:BatchOutput",
        "optimization": "message:ModelOptimizationPolicy",
        "dynamic_batching": "message:ModelDynamicBatching",
        "sequence_batching": "message:ModelSequenceBatching",
        "ensemble_scheduling": "message:ModelEnsembling",
        "instance_group": "*message:ModelInstanceGroup", "default_model_filename": "string",
        "cc_model_filenames": "*message:ModelConfig.CcModelFilenamesEntry",
        "metric_tags": "*message:ModelConfig.MetricTagsEntry",
        "parameters": "*message:ModelConfig.ParametersEntry",
        "model_warmup": "*message:ModelWarmup", "model_operations": "message:ModelOperations",
        "model_transaction_policy": "message:ModelTransactionPolicy",
        "model_repository_agents": "message:ModelRepositoryAgents",
        "response_cache": "message:ModelResponseCache", "model_metrics": "message:ModelMetrics",
    },
    "ModelConfig.CcModelFilenamesEntry": {
        "key": "string", "value": "string",
    },
    "ModelConfig.MetricTagsEntry": {
        "key": "string", "value": "string",
    },
    "ModelConfig.ParametersEntry": {
        "key": "string", "value": "message:ModelParameter",
    },
    "ModelDynamicBatching": {
        "preferred_batch_size": "*int32", "max_queue_delay_microseconds": "uint64",
        "preserve_ordering": "bool", "priority_levels": "uint64",
        "default_priority_level": "uint64", "default_queue_policy": "message:ModelQueuePolicy",
        "priority_queue_policy": "*message:ModelDynamicBatching.PriorityQueuePolicyEntry",
    },
    "ModelDynamicBatching.PriorityQueuePolicyEntry": {
        "key": "uint64", "value": "message:ModelQueuePolicy",
    },
    "ModelEnsembling": {
        "step": "*message:ModelEnsembling.Step", "max_inflight_requests": "uint32",
    },
    "ModelEnsembling.Step": {
        "model_name": "string", "model_version": "int64",
        "input_map": "*message:ModelEnsembling.Step.InputMapEntry",
        "output_map": "*message:ModelEnsembling.Step.OutputMapEntry", "model_namespace": "string",
    },
    "ModelEnsembling.Step.InputMapEntry": {
        "key": "string", "value": "string",
    },
    "ModelEnsembling.Step.OutputMapEntry": {
        "key": "string", "value": "string",
    },
    "ModelInput": {
        "name": "string", "data_type": "enum:DataType", "format": "enum:ModelInput.Format",
        "dims": "*int64", "reshape": "message:ModelTensorReshape", "is_shape_tensor": "bool",
        "allow_ragged_batch": "bool", "optional": "bool", "is_non_linear_format_io": "bool",
    },
    "ModelInstanceGroup": {
        "name": "string", "kind": "enum:ModelInstanceGroup.Kind", "count": "int32",
        "rate_limiter": "message:ModelRateLimiter", "gpus": "*int32",
        "secondary_devices": "*message:ModelInstanceGroup.SecondaryDevice", "profile": "*string",
        "passive": "bool", "host_policy": "string",
    },
    "ModelInstanceGroup.SecondaryDevice": {
        "kind": "enum:ModelInstanceGroup.SecondaryDevice.SecondaryDeviceKind",
        "device_id": "int64",
    },
    "ModelMetrics": {
        "metric_control": "*message:ModelMetrics.MetricControl",
    },
    "ModelMetrics.MetricControl": {
        "metric_identifier": "message:ModelMetrics.MetricControl.MetricIdentifier",
        "histogram_options": "message:ModelMetrics.MetricControl.HistogramOptions",
    },
    "ModelMetrics.MetricControl.HistogramOptions": {
        "buckets": "*double",
    },
    "ModelMetrics.MetricControl.MetricIdentifier": {
        "family": "string",
    },
    "ModelOperations": {
        "op_library_filename": "*string",
    },
    "ModelOptimizationPolicy": {
        "graph": "message:ModelOptimizationPolicy.Graph",
        "priority": "enum:ModelOptimizationPolicy.ModelPriority",
        "cuda": "message:ModelOptimizationPolicy.Cuda",
        "execution_accelerators": "message:ModelOptimizationPolicy.ExecutionAccelerators",
        "input_pinned_memory": "message:ModelOptimizationPolicy.PinnedMemoryBuffer",
        "output_pinned_memory": "message:ModelOptimizationPolicy.PinnedMemoryBuffer",
        "gather_kernel_buffer_threshold": "uint32", "eager_batching": "bool",
    },
    "ModelOptimizationPolicy.Cuda": {
        "graphs": "bool", "busy_wait_events": "bool",
        "graph_spec": "*message:ModelOptimizationPolicy.Cuda.GraphSpec",
        "output_copy_stream": "bool",
    },
    "ModelOptimizationPolicy.Cuda.GraphSpec": {
        "batch_size": "int32",
        "input": "*message:ModelOptimizationPolicy.Cuda.GraphSpec.InputEntry",
        "graph_lower_bound": "message:ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound",
    },
    "ModelOptimizationPolicy.Cuda.GraphSpec.InputEntry": {
        "key": "string", "value": "message:ModelOptimizationPolicy.Cuda.GraphSpec.Shape",
    },
    "ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound": {
        "batch_size": "int32",
        "input": "*message:ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound.InputEntry",
    },
    "ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound.InputEntry": {
        "key": "string", "value": "message:ModelOptimizationPolicy.Cuda.GraphSpec.Shape",
    },
    "ModelOptimizationPolicy.Cuda.GraphSpec.Shape": {
        "dim": "*int64",
    },
    "ModelOptimizationPolicy.ExecutionAccelerators": {

        "gpu_execution_accelerator": "*message:ModelOptimizationPolicy.ExecutionAccelerators.Accelerator",
        "cpu_execution_accelerator": "*message:ModelOptimizationPolicy.ExecutionAccelerators.Accelerator",
    },
    "ModelOptimizationPolicy.ExecutionAccelerators.Accelerator": {
        "name": "string",
        "parameters": "*message:ModelOptimizationPolicy.ExecutionAccelerators.Accelerator.ParametersEntry",
    },
    "ModelOptimizationPolicy.ExecutionAccelerators.Accelerator.ParametersEntry": {
        "key": "string", "value": "string",
    },
    "ModelOptimizationPolicy.Graph": {
        "level": "int32",
    },
    "ModelOptimizationPolicy.PinnedMemoryBuffer": {
        "enable": "bool",
    },
    "ModelOutput": {
        "name": "string", "data_type": "enum:DataType", "dims": "*int64",
        "reshape": "message:ModelTensorReshape", "label_filename": "string",
        "is_shape_tensor": "bool", "is_non_linear_format_io": "bool",
    },
    "ModelParameter": {
        "string_value": "string",
    },
    "ModelQueuePolicy": {
        "timeout_action": "enum:ModelQueuePolicy.TimeoutAction",
        "default_timeout_microseconds": "uint64", "allow_timeout_override": "bool",
        "max_queue_size": "uint32",
    },
    "ModelRateLimiter": {
        "resources": "*message:ModelRateLimiter.Resource", "priority": "uint32",
    },
    "ModelRateLimiter.Resource": {
        "name": "string", "global": "bool", "count": "uint32",
    },
    "ModelRepositoryAgents": {
        "agents": "*message:ModelRepositoryAgents.Agent",
    },
    "ModelRepositoryAgents.Agent": {
        "name": "string", "parameters": "*message:ModelRepositoryAgents.Agent.ParametersEntry",
    },
    "ModelRepositoryAgents.Agent.ParametersEntry": {
        "key": "string", "value": "string",
    },
    "ModelResponseCache": {
        "enable": "bool",
    },
    "ModelSequenceBatching": {
        "direct": "message:ModelSequenceBatching.StrategyDirect",
        "oldest": "message:ModelSequenceBatching.StrategyOldest",
        "max_sequence_idle_microseconds": "uint64",
        "control_input": "*message:ModelSequenceBatching.ControlInput",
        "state": "*message:ModelSequenceBatching.State", "iterative_sequence": "bool",
    },
    "ModelSequenceBatching.Control": {
        "kind": "enum:ModelSequenceBatching.Control.Kind", "int32_false_true": "*int32",
        "fp32_false_true": "*float", "bool_false_true": "*bool", "data_type": "enum:DataType",
    },
    "ModelSequenceBatching.ControlInput": {
        "name": "string", "control": "*message:ModelSequenceBatching.Control",
    },
    "ModelSequenceBatching.InitialState": {
        "data_type": "enum:DataType", "dims": "*int64", "zero_data": "bool",
        "data_file": "string", "name": "string",
    },
    "ModelSequenceBatching.State": {
        "input_name": "string", "output_name": "string", "data_type": "enum:DataType",
        "dims": "*int64", "initial_state": "*message:ModelSequenceBatching.InitialState",
        "use_same_buffer_for_input_output": "bool", "use_growable_memory": "bool",
    },
    "ModelSequenceBatching.StrategyDirect": {
        "max_queue_delay_microseconds": "uint64", "minimum_slot_utilization": "float",
    },
    "ModelSequenceBatching.StrategyOldest": {
        "max_candidate_sequences": "int32", "preferred_batch_size": "*int32",
        "max_queue_delay_microseconds": "uint64", "preserve_ordering": "bool",
    },
    "ModelTensorReshape": {
        "shape": "*int64",
    },
    "ModelTransactionPolicy": {
        "decoupled": "bool",
    },
    "ModelVersionPolicy": {
        "latest": "message:ModelVersionPolicy.Latest", "all": "message:ModelVersionPolicy.All",
        "specific": "message:ModelVersionPolicy.Specific",
    },
    "ModelVersionPolicy.All": {
    },
    "ModelVersionPolicy.Latest": {
        "num_versions": "uint32",
    },
    "ModelVersionPolicy.Specific": {
        "versions": "*int64",
    },
    "ModelWarmup": {
        "name": "string", "batch_size": "uint32", "inputs": "*message:ModelWarmup.InputsEntry",
        "count": "uint32",
    },
    "ModelWarmup.Input": {
        "data_type": "enum:DataType", "dims": "*int64", "zero_data": "bool",
        "random_data": "bool", "input_data_file": "string",
    },
    "ModelWarmup.InputsEntry": {
        "key": "string", "value": "message:ModelWarmup.Input",
    },
}  # fmt: skip
