"""NVRTC's messages, shown with the user's lines; the logs are from NVRTC 12.9."""

from __future__ import annotations

import pickle

from neuraxis.errors import InvalidArgument, KernelCompileError
from neuraxis.gpu.kernel import compile_error

FILE = "/tmp/tmpab12/0f3e.cubin.cu"
SOURCE = """
__global__ void f(float *x, int n)
{
    int unused;
    int i = threadIdx.x;
    if (i < n) x[i] *= two;
}
"""
LOG = f"""{FILE}(6): error: identifier "two" is undefined
      if (i < n) x[i] *= two;
                         ^

{FILE}(4): warning #177-D: variable "unused" was declared but never referenced
      int unused;
          ^

Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"

1 error detected in the compilation of "{FILE}".
"""


def test_the_line_is_shown() -> None:
    error = compile_error("mine", "f", SOURCE, LOG, FILE)
    assert str(error) == (
        "kernel 'mine' does not compile:\n"
        '  line 6: identifier "two" is undefined\n'
        "      6 |     if (i < n) x[i] *= two;"
    )
    assert (error.kernel, error.line, error.source_line) == ("mine", 6, "    if (i < n) x[i] *= two;")
    assert error.log == LOG
    assert isinstance(error, InvalidArgument)


def test_it_can_be_sent_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(compile_error("mine", "f", SOURCE, LOG, FILE)))
    assert type(error) is KernelCompileError
    assert (error.line, error.kernel, error.log) == (6, "mine", LOG)


def test_a_header_that_is_not_there_and_an_error_in_one() -> None:
    log = f'{FILE}(2): catastrophic error: cannot open source file "nothere.h"\n  #include "nothere.h"\n'
    error = compile_error("mine", "f", '\n#include "nothere.h"\n', log, FILE)
    assert error.line == 2
    assert 'line 2: cannot open source file "nothere.h"\n      2 | #include "nothere.h"' in str(error)
    error = compile_error("mine", "f", "#include <a.h>", '/usr/include/a.h(7): error: expected a ";"\n', FILE)
    assert error.line is None
    assert '/usr/include/a.h(7): expected a ";"' in str(error)


def test_a_name_that_is_not_in_the_source() -> None:
    log = (
        '__nv_name_map(2): error: identifier "g" is undefined\n  #pragma nv_mangled_name g\n\n'
        "__nv_name_map(2): error: Error in parsing name expression for lowered name lookup.\n"
    )
    good = SOURCE.replace("two", "2")
    assert str(compile_error("mine", "g", good, log, FILE)) == "the source of kernel 'mine' has no kernel 'g'; it has f"
    assert "it has no __global__ function" in str(compile_error("mine", "g", "int a;", log, FILE))


def test_many_errors_are_counted() -> None:
    source = "\n".join(f"a{line}" for line in range(1, 10))
    log = "\n".join(f"{FILE}({line}): error: bad" for line in range(1, 10))
    error = compile_error("mine", "f", source, log, FILE)
    assert str(error).count("line ") == 5
    assert "and 4 more errors" in str(error)


def test_messages_without_a_line_number_are_shown_unchanged() -> None:
    error = compile_error("mine", "f", SOURCE, "nvrtc: error: invalid value for --gpu-architecture (-arch)\n", FILE)
    assert error.line is None
    assert "invalid value for --gpu-architecture" in str(error)
