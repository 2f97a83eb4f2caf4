"""The C structs of the tables have the layout of their dtypes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from neuraxis.engine.cuda import tables
from tests.engine.cuda.twin import compiler

_TYPES = """#include <cstddef>
#include <cstdio>
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef u32 Word;
struct Record;
"""


@pytest.mark.skipif(compiler() is None, reason="the structs are compiled with g++")
def test_fields_have_the_offsets_of_the_dtypes(tmp_path: Path) -> None:
    lines = [
        f'printf("{struct} {field} %zu %zu\\n", offsetof({struct}, {field}), sizeof((({struct} *)0)->{field}));'
        for struct, dtype in tables.STRUCTS.items()
        for field in dtype.names or ()
    ]
    source = tmp_path / "tables.cpp"
    source.write_text(_TYPES + tables.declarations() + "int main() {\n" + "\n".join(lines) + "\n}\n")
    program = tmp_path / "tables"
    subprocess.run([compiler() or "", "-std=c++17", "-o", program, source], check=True, timeout=60)
    found = subprocess.run([program], check=True, timeout=10, capture_output=True, text=True).stdout.split("\n")
    expected = [
        f"{struct} {field} {tables.offset_of(dtype, field)} {dtype[field].itemsize}"
        for struct, dtype in tables.STRUCTS.items()
        for field in dtype.names or ()
    ]
    assert found == [*expected, ""]


@pytest.mark.skipif(compiler() is None, reason="the structs are compiled with g++")
def test_a_struct_with_padding_is_an_error(tmp_path: Path) -> None:
    text = tables.struct_source("Padded", np.dtype([("small", np.uint32), ("large", np.int64)]))
    source = tmp_path / "padded.cpp"
    source.write_text(_TYPES + text)
    made = subprocess.run(
        [compiler() or "", "-std=c++17", "-c", "-o", tmp_path / "padded.o", source],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert made.returncode != 0
    assert "Padded differs from its dtype" in made.stderr


def test_the_declaration_of_a_field_follows_its_dtype() -> None:
    dtype = np.dtype([("a", np.uint64), ("b", np.float64, (5,)), ("c", np.float32), ("d", np.uint32)])
    assert tables.struct_source("Some", dtype).split("\n")[1:5] == [
        "    u64 a;",
        "    double b[5];",
        "    float c;",
        "    u32 d;",
    ]
    assert "    const float *values;\n" in tables.declarations()
