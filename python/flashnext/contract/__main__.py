"""`python -m flashnext.contract`: run the kernel contract on the devices present and write a receipt."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashnext import _core as core
from flashnext.contract.check import SEED, Report, Subject, run_all, run_gates, subjects
from flashnext.contract.gates import GATES
from flashnext.contract.launch import DeviceRunner
from flashnext.contract.sweep import rotary_sweep, tables
from flashnext.errors import FlashnextError


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for.

    Returns:
        0 if every gate is green and saw its planted faults, else 1.
    """
    parser = argparse.ArgumentParser(prog="python -m flashnext.contract", description=__doc__)
    parser.add_argument(
        "--device",
        action="append",
        help="kind of device: cpu, metal-host or cuda (default: all that this build has)",
    )
    parser.add_argument(
        "--path",
        action="append",
        help="instruction path of the CPU (default: all this machine can run), order of metal-host, or words "
        "of cuda",
    )
    parser.add_argument("--kernel", action="append", help="kernel or family (default: all)")
    parser.add_argument(
        "--gate", action="append", choices=GATES, help="these gates only, and no planted faults"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="of the drawn inputs")
    parser.add_argument(
        "--sweep", action="store_true", help="every rotary position to 1,048,576 as well (minutes)"
    )
    parser.add_argument("--receipt", type=Path, help="write what was found to this JSON file")
    given = parser.parse_args(arguments)

    chosen = [s for s in subjects() if not given.kernel or {s.name, s.family.name} & set(given.kernel)]
    if not chosen:
        parser.error(f"no kernel is called {', '.join(given.kernel)}")
    receipt: list[dict[str, Any]] = []
    passed = True
    try:
        devices = _devices(given.device or core.device_kinds(), given.path)
    except FlashnextError as e:
        parser.error(str(e))
    for device in devices:
        runner = DeviceRunner(device)
        print(device.name)
        kernels = {}
        for subject in chosen:
            start = time.monotonic()
            if given.gate:
                report = run_gates(subject, given.gate, runner, given.seed)
            else:
                report = run_all(subject, runner, given.seed)
            passed &= report.passed
            kernels[subject.name] = _entry(subject, report)
            print(_line(report, time.monotonic() - start), flush=True)
        sweeps = []
        for table in tables() if given.sweep else ():
            sweep = rotary_sweep(runner, table)
            passed &= sweep.passed
            sweeps.append(sweep.as_dict())
            print(
                f"  rotary {sweep.table}: {sweep.n_values:,} values, worst {sweep.worst:.2f} ulp at "
                f"{sweep.worst_at}; "
                f"{sweep.n_blocks:,} blocks, worst {sweep.worst_block:.2f} ulp; angle "
                f"{sweep.definition:.2g} rad off"
            )
        receipt.append(
            {"device": runner.device.name, "seed": given.seed, "kernels": kernels, "rotary": sweeps}
        )
    if given.receipt:
        given.receipt.write_text(json.dumps(receipt, indent=1) + "\n")
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


def _devices(kinds: Sequence[str], paths: Sequence[str] | None) -> list[core.Device]:
    orders = {"cpu": core.instruction_paths(), "metal-host": ["random"]}
    return [
        core.open_device(kind, 0, path, shuffle_seed=0 if kind == "cpu" else SEED)
        for kind in kinds
        for path in paths or orders.get(kind, [""])
    ]


def _line(report: Report, seconds: float) -> str:
    state = "ok " if report.passed else "RED"
    text = (
        f"  {state} {report.kernel:22} {report.n_shapes:3} shapes, {report.n_faults:3} faults, worst "
        f"error {report.worst:6.3f} of "
        f"its bound, {seconds:5.1f} s"
    )
    return "\n".join(
        [text, *(f"      {g}: {e}" for g, e in report.red.items()), *(f"      {u}" for u in report.unseen)]
    )


def _entry(subject: Subject, report: Report) -> dict[str, Any]:
    family = subject.family
    return {
        "envelope": family.envelope,
        "nonfinite": family.nonfinite,
        "order": family.order,
        "launch": family.launch_record,
        "shapes": report.n_shapes,
        "red": report.red,
        "worst_share_of_bound": report.worst,
        "faults": report.n_faults,
        "unseen": report.unseen,
    }


if __name__ == "__main__":
    sys.exit(main())
