"""The wheel: no symbol that an old system lacks, installable without a network, with a working command.

Not part of a plain test run, since it needs a wheel: `TEST_WHEEL=path pytest tests/test_wheel.py` checks that one
(or the newest in target/wheels when TEST_WHEEL=newest). Skipped, and counted, when there is none.
"""

import ctypes
import os
import re
import shutil
import struct
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

GLIBC_MAX = (2, 28)
# What manylinux_2_28 allows besides libc; everything else would have to be shipped.
LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libgcc_s.so.1", "libutil.so.1"}
LIBRARIES |= {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
WHEEL = os.environ.get("TEST_WHEEL")


@pytest.fixture(scope="module")
def wheel() -> Path:
    if not WHEEL:
        pytest.skip("no wheel given: set TEST_WHEEL")
    if WHEEL != "newest":
        return Path(WHEEL).resolve()
    root = Path(__file__).resolve().parents[3]
    target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    found = sorted((target / "wheels").glob("forebay-*.whl"), key=lambda p: p.stat().st_mtime)
    assert found, f"no wheel in {target / 'wheels'}: run maturin build first"
    return found[-1]


@pytest.fixture(scope="module")
def module(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's folder with its libraries."""
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.endswith(".so")]
        assert sorted(names) == ["forebay/_forebay.abi3.so", "forebay/libforebay_mem.so"]
        for name in names:
            archive.extract(name, folder)
        return folder / "forebay"


class Elf:
    """The few parts of a 64-bit little-endian ELF file that tell what it needs."""

    def __init__(self, data: bytes) -> None:
        assert data[:6] == b"\x7fELF\x02\x01", "not a 64-bit little-endian ELF file"
        self.data = data
        at, size, count = struct.unpack_from("<Q", data, 0x28)[0], *struct.unpack_from("<HH", data, 0x3A)
        # type, offset, size, link of each section
        self.sections = [struct.unpack_from("<4xI16xQQI", data, at + i * size) for i in range(count)]

    def text(self, table: int, at: int) -> str:
        start = self.sections[table][1] + at
        return self.data[start : self.data.index(b"\0", start)].decode()

    def versions(self) -> dict[str, set[str]]:
        """Version names needed, by library (section type SHT_GNU_verneed)."""
        needed: dict[str, set[str]] = {}
        for kind, at, _, link in self.sections:
            while kind == 0x6FFFFFFE:
                count, file, aux, step = struct.unpack_from("<2xHIII", self.data, at)
                names = needed.setdefault(self.text(link, file), set())
                entry = at + aux
                for _ in range(count):
                    name, following = struct.unpack_from("<8xII", self.data, entry)
                    names.add(self.text(link, name))
                    entry += following
                if not step:
                    break
                at += step
        return needed

    def libraries(self) -> list[str]:
        """DT_NEEDED entries."""
        found = []
        for kind, at, size, link in self.sections:
            if kind == 6:
                for i in range(0, size, 16):
                    tag, value = struct.unpack_from("<QQ", self.data, at + i)
                    if tag == 1:
                        found.append(self.text(link, value))
        return found


def number(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in version.split("_")[1].split("."))


def test_tag(wheel: Path):
    assert re.fullmatch(r"forebay-[\d.]+-cp311-abi3-manylinux_2_28_(x86_64|aarch64)\.whl", wheel.name)


@pytest.mark.parametrize("library", ["_forebay.abi3.so", "libforebay_mem.so"])
def test_needs_no_newer_glibc(module: Path, library: str):
    elf = Elf((module / library).read_bytes())
    needed = elf.versions()
    glibc = {v for names in needed.values() for v in names if v.startswith("GLIBC_") and v != "GLIBC_PRIVATE"}
    assert glibc, "no versioned symbol at all: the reader of this test is broken"
    too_new = sorted(v for v in glibc if number(v) > GLIBC_MAX)
    assert not too_new, f"symbols above GLIBC_2.28: {too_new}"
    assert set(elf.libraries()) <= LIBRARIES, elf.libraries()


def test_what_is_put_in_front_of_programs_has_no_names_but_those_of_the_c_library(module: Path):
    if not shutil.which("nm"):
        pytest.skip("nm is not installed")
    command = ["nm", "-D", "--defined-only", module / "libforebay_mem.so"]
    names = [line.split()[-1] for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines()]
    assert "malloc" in names
    libc = ctypes.CDLL(None)
    assert [name for name in names if not hasattr(libc, name)] == []


def test_the_reader_of_this_test_agrees_with_readelf(module: Path):
    if not shutil.which("readelf"):
        pytest.skip("readelf is not installed")
    library = module / "_forebay.abi3.so"
    text = subprocess.run(["readelf", "--version-info", "--wide", library], capture_output=True, text=True).stdout
    theirs = set(re.findall(r"Name: (GLIBC\S+)", text))
    ours = {v for names in Elf(library.read_bytes()).versions().values() for v in names}
    assert theirs == {v for v in ours if v.startswith("GLIBC")}


def test_auditwheel(wheel: Path):
    if not shutil.which("auditwheel"):
        pytest.skip("auditwheel is not installed")
    said = subprocess.run(["auditwheel", "show", str(wheel)], capture_output=True, text=True).stdout
    assert "manylinux_2_28" in said or "manylinux_2_17" in said, said


def test_is_stripped_and_small(wheel: Path):
    assert wheel.stat().st_size < 20 << 20


def test_installs_offline_and_runs(wheel: Path, tmp_path: Path):
    """In a fresh environment that only borrows NumPy: no index, no dependency fetched."""
    pytest.importorskip("numpy")
    import numpy

    environment = tmp_path / "env"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    site = Path(subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True
    ).stdout.strip())
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    done = subprocess.run(
        [*pip, "install", "--no-index", "--no-deps", str(wheel)],
        capture_output=True, text=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (site / "borrowed-numpy.pth").write_text(str(Path(numpy.__file__).parents[1]))
    said = subprocess.run([environment / "bin" / "forebay", "--version"], capture_output=True, text=True)
    assert said.returncode == 0 and wheel.name.split("-")[1] in said.stdout, said.stderr
    # The benchmarks of the studies are a command of their own, which the wheel does not carry.
    said = subprocess.run(
        [environment / "bin" / "forebay", "bench"], capture_output=True, text=True,
        env={**os.environ, "PATH": "/usr/bin:/bin"},
    )
    assert said.returncode == 3 and "forebay-lab" in said.stderr, said.stderr
    code = """
import numpy as np, forebay as fb
assert "/env/" in fb.__file__, fb.__file__
with fb.open("w", "w", quota="8MiB") as w, fb.open("w") as r:
    w.begin_step(); w.put("T", np.arange(4.0)); w.end_step()
    print(next(r.steps()).get("T").sum())
"""
    ran = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert ran.stdout.split() == ["6.0"], ran.stderr
