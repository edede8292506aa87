# Sourced by the other scripts, in the checkout's folder: make .venv and install into it.
# PYTHON chooses the interpreter. Where no GPU is seen on Linux, torch is its CPU build,
# which is a tenth of the size.

"${PYTHON:-python3}" -m venv .venv
. .venv/bin/activate
torch=(torch==2.13.0)
if [ "$(uname -s)" = Linux ] && ! nvidia-smi -L >/dev/null 2>&1; then
    torch=(torch==2.13.0+cpu --find-links https://download.pytorch.org/whl/cpu/torch/)
fi
if ! pip install "${torch[@]}" '.[dev]'; then
    echo "the CPU build of torch cannot be had; trying the ordinary one" >&2
    pip install torch==2.13.0 '.[dev]'
fi
