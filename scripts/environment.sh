# Sourced by the other scripts, in the checkout's folder: make .venv and install into it,
# unless the same code is installed there already. PYTHON chooses the interpreter; EXTRAS is
# what to install besides, such as [dev]. Where no GPU is seen on Linux and PyTorch's own
# server answers, torch is its CPU build, which is a tenth of the size.

EXTRAS=${EXTRAS:-}

code=$(find setup.py pe_fairseq -name '*.py' -print0 | sort -z | xargs -0 cat | cksum)
if [ "$(cat ".venv/installed$EXTRAS" 2>/dev/null)" = "$code" ]; then
    . .venv/bin/activate
    return
fi

# ve-fairseq has wheels for Linux on x86-64 alone
if ! "${PYTHON:-python3}" -c "import platform as p, sys; sys.exit(
        sys.version_info[:2] not in ((3, 11), (3, 12))
        or (p.system(), p.machine()) != ('Linux', 'x86_64'))" && ! command -v c++ >/dev/null; then
    echo "error: for $("${PYTHON:-python3}" --version) on this machine fairseq is compiled from" \
        "source, and there is no C++ compiler (c++). Install one, or on Linux x86-64 take" \
        "Python 3.11 or 3.12: PYTHON=python3.12 $0" >&2
    exit 1
fi

rm -f .venv/installed*
"${PYTHON:-python3}" -m venv .venv
. .venv/bin/activate
cpu_builds=https://download.pytorch.org/whl/cpu/torch/
torch=(torch==2.13.0)
if [ "$(uname -s)" = Linux ] && ! nvidia-smi -L >/dev/null 2>&1 &&
    python -c "import urllib.request as r; r.urlopen('$cpu_builds', timeout=10)" 2>/dev/null; then
    torch=(torch==2.13.0+cpu --find-links "$cpu_builds")
fi
pip install "${torch[@]}" ".$EXTRAS"
echo "$code" | tee .venv/installed >".venv/installed$EXTRAS"
