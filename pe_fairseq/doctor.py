"""``pe-fairseq doctor``: does everything work on this machine, and what is fast?"""

import importlib
import importlib.metadata
import importlib.util
import platform
import sys
from dataclasses import dataclass
from typing import List

import pe_fairseq

OK, NOTE, FAIL = "ok", "note", "FAIL"

TESTED_PYTHON = ((3, 11), (3, 12))
FAIRSEQ_REQUIREMENT = "pip install ve-fairseq==0.12.3"


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was looked at, how it is, and what to know of it."""

    subject: str
    status: str
    text: str


def main():
    """Print the report; return 1 if anything will not work, else 0."""
    findings = [finding for check in CHECKS for finding in _survive(check)]
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        print(f"{finding.subject:{width}}  {finding.status:4}  {finding.text}")
    failures = sum(finding.status == FAIL for finding in findings)
    if failures:
        print(f"{failures} of {len(findings)} checks failed", file=sys.stderr)
    return 1 if failures else 0


def _survive(check):
    """The findings of ``check``; that it broke, where it did: the report goes on."""
    try:
        return check()
    except Exception as error:
        subject = check.__name__.removeprefix("check_")
        return [Finding(subject, FAIL, f"{type(error).__name__}: {_first_line(error)}")]


def _first_line(error):
    return str(error).partition("\n")[0]


def check_versions() -> List[Finding]:
    """Python and the libraries that pe-fairseq stands on."""
    version = sys.version_info[:2]
    python = platform.python_version()
    if version in TESTED_PYTHON:
        findings = [Finding("python", OK, python)]
    elif version == (3, 10):
        findings = [Finding("python", NOTE, f"{python}: best effort, tested on 3.11 and 3.12")]
    else:
        findings = [Finding("python", FAIL, f"{python}: use 3.11 or 3.12")]
    findings.append(Finding("pe-fairseq", OK, pe_fairseq.__version__))
    for name in (
        "torch",
        "numpy",
        "rich",
        "hydra-core",
        "omegaconf",
        "sentencepiece",
        "sacrebleu",
    ):
        try:
            findings.append(Finding(name, OK, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            findings.append(Finding(name, FAIL, f"not installed: pip install {name}"))
    return findings


def check_fairseq() -> List[Finding]:
    """One distribution that owns the package fairseq, and it imports."""
    owners = sorted(set(importlib.metadata.packages_distributions().get("fairseq", [])))
    if not owners:
        return [Finding("fairseq", FAIL, f"not installed: {FAIRSEQ_REQUIREMENT}")]
    if len(owners) > 1:
        return [
            Finding(
                "fairseq",
                FAIL,
                f"{' and '.join(owners)} are installed into one folder and overwrite each "
                f"other: pip uninstall {' '.join(owners)}, then {FAIRSEQ_REQUIREMENT}",
            )
        ]
    if pe_fairseq.FAIRSEQ_ERROR is not None:
        reason = _first_line(pe_fairseq.FAIRSEQ_ERROR)
        return [
            Finding(
                "fairseq",
                FAIL,
                f"{owners[0]} {importlib.metadata.version(owners[0])} does not import "
                f"({reason}): pip uninstall {owners[0]}, then {FAIRSEQ_REQUIREMENT}",
            )
        ]
    import fairseq

    findings = [Finding("fairseq", OK, f"{fairseq.__version__} from {owners[0]}")]
    for name in ("data_utils_fast", "token_block_utils_fast"):
        findings.append(_compiled(f"fairseq.data.{name}"))
    return findings


def _compiled(module):
    try:
        importlib.import_module(module)
    except ImportError as error:
        return Finding(module, FAIL, f"its compiled part does not load ({error})")
    return Finding(module, OK, "compiled part loads")


def check_copies() -> List[Finding]:
    """The plug-in's folder, and other copies of it."""
    from . import user_dir

    folder = str(user_dir.package_dir())
    others = user_dir.other_copies()
    if not others:
        return [Finding("user-dir", OK, folder)]
    names = ", ".join(map(str, others))
    return [Finding("user-dir", OK, f"{folder}; the same code is in {names}")]


def check_devices() -> List[Finding]:
    """CPU threads, GPUs, and a small product in each precision on each."""
    import torch

    findings = [Finding("cpu", OK, f"{torch.get_num_threads()} threads")]
    if not torch.cuda.is_available():
        built = torch.version.cuda
        reason = f"torch is built for CUDA {built}" if built else "torch is a CPU build"
        findings.append(Finding("gpu", NOTE, f"none seen ({reason})"))
    for index in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(index)
        memory = torch.cuda.get_device_properties(index).total_memory / 2**30
        findings.append(Finding(f"gpu {index}", OK, f"{name}, {memory:.0f} GiB"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for flag, dtype in (("--fp16", torch.float16), ("--bf16", torch.bfloat16)):
        findings.append(_precision(flag, dtype, device))
    if device == "cpu":
        findings.append(
            Finding("--amp", NOTE, "without a GPU it trains in float32 (torch.cuda.amp)")
        )
    return findings


def _precision(flag, dtype, device):
    import torch

    try:
        square = torch.ones(8, 8, dtype=dtype, device=device)
        product = torch.softmax(square @ square, dim=-1)
    except RuntimeError as error:
        return Finding(flag, FAIL, f"does not run on {device}: {error}")
    if not product.isfinite().all():
        return Finding(flag, FAIL, f"gives wrong numbers on {device}")
    slow = " (it runs, but float32 is faster on most CPUs)" if device == "cpu" else ""
    return Finding(flag, OK, f"runs on {device}{slow}")


def check_distributed() -> List[Finding]:
    """Which backends several processes can talk over."""
    import torch

    dist = torch.distributed
    if not dist.is_available():
        return [Finding("distributed", FAIL, "torch is built without torch.distributed")]
    backends = [
        name
        for name, there in (
            ("gloo", dist.is_gloo_available()),
            ("nccl", dist.is_nccl_available()),
        )
        if there
    ]
    needed = "nccl" if torch.cuda.is_available() else "gloo"
    status = OK if needed in backends else FAIL
    return [Finding("distributed", status, ", ".join(backends) or "no backend")]


def check_fused() -> List[Finding]:
    """Optional libraries and kernels that make things faster."""
    import torch

    gpu = torch.cuda.is_available()
    findings = []
    if gpu and torch.backends.cuda.flash_sdp_enabled():
        findings.append(Finding("flash attention", OK, "torch's own, for --fp16 and --bf16"))
    elif gpu:
        findings.append(Finding("flash attention", NOTE, "switched off in torch"))
    else:
        findings.append(Finding("flash attention", OK, "torch's own CPU kernel"))
    findings.append(_fla(gpu))
    return findings


def _fla(gpu):
    from .attention import fla

    status, reason, version = NOTE, fla.unavailable(), fla.installed_version()
    if reason is not None:
        text = f"{reason}; linear attention goes by torch"
    elif gpu:
        status = OK
        text = f"{version}, for causal linear attention on CUDA; {fla.SWITCH}=0 keeps it off"
    else:
        text = f"{version}, but it needs a GPU; linear attention goes by torch"
    return Finding("flash-linear-attention", status, text)


def check_apex() -> List[Finding]:
    """NVIDIA's apex, and not the unrelated package that PyPI has under its name."""
    if not _installed("apex"):
        text = "not installed; optional, README says what it speeds up"
        return [Finding("apex", NOTE, text)]
    try:
        importlib.import_module("apex.normalization")
        importlib.import_module("apex.multi_tensor_apply")
    except ImportError:
        return [
            Finding(
                "apex",
                FAIL,
                "this is PyPI's apex, a web toolkit, not NVIDIA's: pip uninstall apex; "
                "README says how to build NVIDIA's",
            )
        ]
    return [Finding("apex", OK, "NVIDIA's: fused Adam, layer norm and gradient norm")]


def _installed(module):
    return importlib.util.find_spec(module) is not None


CHECKS = (
    check_versions,
    check_fairseq,
    check_copies,
    check_devices,
    check_distributed,
    check_apex,
    check_fused,
)
