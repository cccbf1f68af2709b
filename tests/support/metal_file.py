"""Small kernels in files of their own, for tests of the shim."""

from __future__ import annotations

from pathlib import Path

from metal.host.shim import Device, build


class MetalFile:
    """Writes small kernels to a file of their own."""

    head = "#include <metal_stdlib>\nusing namespace metal;\nstruct Params { uint n; float f; };\n"
    parameters = (
        "device const float* x [[buffer(0)]], device float* out [[buffer(1)]], "
        "constant Params& p [[buffer(2)]], uint tid [[thread_index_in_threadgroup]], "
        "uint lane [[thread_index_in_simdgroup]], uint sg [[simdgroup_index_in_threadgroup]], "
        "uint3 tgid [[threadgroup_position_in_grid]]"
    )

    def __init__(self, folder: Path, runtime: Path) -> None:
        self.folder, self.runtime = folder, runtime

    def library(self, body: str, parameters: str = parameters) -> Path:
        """Compile a kernel `k`."""
        return build([self.kernel(body, parameters=parameters)], self.folder, self.runtime)

    def device(self, body: str, parameters: str = parameters) -> Device:
        """Compile a kernel `k`, to run it."""
        return Device(self.library(body, parameters))

    def text(self, text: str) -> Path:
        """Write a whole file."""
        path = self.folder / "faulty.metal"
        path.write_text(text)
        return path

    def kernel(self, body: str, before: str = "", parameters: str = parameters) -> Path:
        """Write a kernel `k` whose body is line 6 and on."""
        return self.text(
            f"{self.head}{before}\n"
            f"[[kernel, max_total_threads_per_threadgroup(128)]] void k({parameters}) {{\n{body}\n}}\n"
        )
