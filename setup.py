import atexit
import shutil
import tempfile
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent

# ve-fairseq has wheels for these alone; everywhere else the same code is compiled.
HAS_WHEEL = (
    "platform_system == 'Linux' and platform_machine == 'x86_64' "
    "and python_version >= '3.11' and python_version < '3.13'"
)
NO_WHEEL = (
    "platform_system != 'Linux' or platform_machine != 'x86_64' "
    "or python_version < '3.11' or python_version >= '3.13'"
)

version = next(
    line.split('"')[1]
    for line in (HERE / "pe_fairseq/__init__.py").read_text().splitlines()
    if line.startswith("__version__")
)

# Built beside the sources, a file that is gone since would be installed again.
build_folder = tempfile.mkdtemp(prefix="pe-fairseq-build-")
atexit.register(shutil.rmtree, build_folder, ignore_errors=True)

setup(
    name="pe-fairseq",
    version=version,
    description="Position encodings for fairseq: train, evaluate and compare them",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="MIT",
    options={"build": {"build_base": build_folder}},
    python_requires=">=3.10,<3.13",
    packages=find_packages(include=["pe_fairseq", "pe_fairseq.*"]),
    install_requires=[
        "torch>=2.6",
        f"ve-fairseq==0.12.3; {HAS_WHEEL}",
        f"fairseq-fixed==0.12.3.1; {NO_WHEEL}",
        "hydra-core>=1.3.2,<1.4",
        "omegaconf>=2.3,<2.4",
        "numpy",
        "sentencepiece",
        "sacrebleu",
        "tensorboard",
        "scikit-learn",
        "matplotlib",
        "rich",
    ],
    extras_require={
        "dev": ["pytest", "pytest-xdist", "ruff", "transformers"],
        "gpu": ["flash-linear-attention>=0.6"],
    },
    entry_points={"console_scripts": ["pe-fairseq = pe_fairseq.cli:main"]},
)
