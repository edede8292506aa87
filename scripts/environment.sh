# Sourced by the other scripts, in the checkout's folder: make .venv and install into it.
# PYTHON chooses the interpreter. Where no GPU is seen on Linux and PyTorch's own server
# answers, torch is its CPU build, which is a tenth of the size.

"${PYTHON:-python3}" -m venv .venv
. .venv/bin/activate
cpu_builds=https://download.pytorch.org/whl/cpu/torch/
torch=(torch==2.13.0)
if [ "$(uname -s)" = Linux ] && ! nvidia-smi -L >/dev/null 2>&1 &&
    python -c "import urllib.request as r; r.urlopen('$cpu_builds', timeout=10)" 2>/dev/null; then
    torch=(torch==2.13.0+cpu --find-links "$cpu_builds")
fi
pip install "${torch[@]}" '.[dev]'
