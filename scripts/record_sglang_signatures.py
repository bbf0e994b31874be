"""Records what `roll_rollout.sglang_engine` relies on in SGLang's source: messages, methods, routes.

    pip download --no-deps sglang==0.5.23 && unzip sglang-*.whl -d sglang-source
    python scripts/record_sglang_signatures.py sglang-source > tests/data/sglang_signatures.json

The source is parsed, not imported: SGLang needs CUDA.
"""

import ast
import json
import sys
from pathlib import Path

MANAGERS = ("tokenizer_manager.py", "tokenizer_control_mixin.py")
MESSAGES = (
    "AbortReq",
    "ContinueGenerationReqInput",
    "GenerateReqInput",
    "LoadLoRAAdapterReqInput",
    "PauseGenerationReqInput",
    "ReleaseMemoryOccupationReqInput",
    "ResumeMemoryOccupationReqInput",
    "UnloadLoRAAdapterReqInput",
    "UpdateWeightFromDiskReqInput",
)
METHODS = (
    "abort_request",
    "continue_generation",
    "flush_cache",
    "generate_request",
    "load_lora_adapter",
    "pause_generation",
    "release_memory_occupation",
    "resume_memory_occupation",
    "unload_lora_adapter",
    "update_weights_from_disk",
)
STRINGS = (
    "finish_reason",
    "meta_info",
    "output_token_logprobs",
    "output_token_logprobs_length",
    "output_token_sampling_logprobs",
    "routed_experts",
    "start",
    "version",
    "weight_versions",
)


def main() -> None:
    root = Path(sys.argv[1])
    source = root / "sglang" / "srt"
    version = next(root.glob("sglang-*.dist-info")).name.removeprefix("sglang-").removesuffix(".dist-info")
    messages = _tree(source / "managers" / "io_struct.py")
    sampling = _tree(source / "sampling" / "sampling_params.py")
    methods: dict[str, list[str]] = {}
    for name in MANAGERS:
        for node in ast.walk(_tree(source / "managers" / name)):
            if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
                methods.setdefault(node.name, [each.arg for each in node.args.args if each.arg != "self"])
    text = (source / "managers" / "tokenizer_manager.py").read_text(encoding="utf-8")
    text += (source / "utils" / "weight_versions.py").read_text(encoding="utf-8")
    record = {
        "version": version,
        "messages": {name: fields for name, fields in _fields(messages).items() if name in MESSAGES},
        "sampling_params": _fields(sampling)["SamplingParams"],
        "methods": {name: methods[name] for name in METHODS},
        "routes": sorted(_routes(_tree(source / "entrypoints" / "http_server.py"))),
        "strings": [each for each in STRINGS if f'"{each}"' in text],
    }
    print(json.dumps(record, indent=1, sort_keys=True))


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _fields(tree: ast.Module) -> dict[str, list[str]]:
    """Annotated fields of every class by its name, those of its bases in the same file included."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

    def fields(name: str) -> list[str]:
        node = classes.get(name)
        if node is None:
            return []
        own = [
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        ]
        inherited = [field for base in node.bases for field in fields(ast.unparse(base))]
        return inherited + own

    return {name: fields(name) for name in sorted(classes)}


def _routes(tree: ast.Module) -> set[str]:
    return {
        str(call.args[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncFunctionDef)
        for call in node.decorator_list
        if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant)
    }


if __name__ == "__main__":
    main()
