"""Equations as text: names, units, values, methods and errors; nothing is run here."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from neuraxis.errors import InvalidArgument, InvalidType, MissingDependency
from neuraxis.network import equations
from neuraxis.network.symbolic.units import NAMED, parse_unit, shown

LIF = "dv/dt = (e_rest - v)/tau_m + i/c_m : mV (unless refractory)"
VALUES = {"e_rest": "-70*mV", "tau_m": "10*ms", "c_m": "250*pF"}


def refused(text: str, **given: Any) -> str:
    with pytest.raises(InvalidArgument) as caught:
        equations(text, **given)
    return str(caught.value)


def method_of(text: str, **given: Any) -> str:
    return equations(text, **given).description.splitlines()[-1]


class TestNames:
    def test_variables_get_names_that_end_in_their_unit(self) -> None:
        model = equations(
            """
            dv/dt = (el - v + r*i)/tau : volt
            dg_e/dt = -g_e/tau_e_ms : siemens
            dy_mv/dt = -y_mv/tau : volt
            dw/dt = w_rate : 1
            r : ohm
            tau : second
            rate : Hz
            w_rate = rate : Hz
            el : mV
            """,
            parameters={"el": -70.0, "r": "100*MOhm", "tau_ms": 20.0, "rate": 5.0, "tau_e_ms": 2.0},
        )
        assert list(model.states) == ["v_mv", "g_e_ns", "y_mv", "w"]
        assert dict(model.parameters) == {
            "r_mohm": 100.0, "tau_ms": 20.0, "rate_hz": 5.0, "el_mv": -70.0, "tau_e_ms": 2.0,
        }  # fmt: skip

    def test_a_declared_unit_other_than_a_base_unit_is_kept(self) -> None:
        model = equations("dv/dt = I/c : mV\nI : nA\nc = 1*nF : nF\nx = 2*uS : uS", parameters={"I": 0.8})
        assert dict(model.parameters) == {"I_na": 0.8, "c_nf": 1.0, "x_us": 2.0}

    def test_a_name_that_ends_in_letters_of_another_unit_gets_its_own(self) -> None:
        model = equations("dv/dt = -g_na*v/c : mV\nc = 1*pF : pF", parameters={"g_na": "20*nS"})
        assert dict(model.parameters) == {"c_pf": 1.0, "g_na_ns": 20.0}

    def test_a_unit_without_an_ending_is_in_the_help(self) -> None:
        model = equations("dv/dt = slope : mV\nslope : volt/second", parameters={"slope": "0.5*mV/ms"})
        assert model.parameters["slope"] == 0.5
        assert model.meanings["slope"] == "in mV/ms"

    def test_comments_become_meanings(self) -> None:
        model = equations("dv/dt = -v/tau : mV  # the membrane\ntau = 20*ms : ms  # its time constant")
        assert model.meanings["v_mv"] == "the membrane"
        assert "its time constant" in str(model.parameters)

    def test_initial_values_are_numbers_or_expressions_of_parameters(self) -> None:
        model = equations(LIF, refractory=2, parameters=VALUES, initial={"v": "e_rest + 5*mV"})
        assert model.states["v_mv"] == -65.0
        assert equations(LIF, refractory=2, parameters=VALUES, initial={"v_mv": -60}).states["v_mv"] == -60.0
        assert equations("dv/dt = -v/(1*ms) : volt", initial={"v": "-0.06*volt"}).states["v_mv"] == -60.0

    def test_what_resets_change_is_a_state(self) -> None:
        model = equations("dv/dt = -v/(10*ms) : mV\nvt : mV", threshold="v > vt", reset="vt += 3*mV",
                          parameters={"vt": 10.0})  # fmt: skip
        assert dict(model.states) == {"v_mv": 0.0, "vt_mv": 10.0}
        assert not model.parameters

    def test_current_signals_and_receptors(self) -> None:
        model = equations(
            "dv/dt = -v/(10*ms) + gain*I/c + g*v/c : mV\nI : amp\nc = 1*nF : nF\ndg/dt = -g/(5*ms) : nS",
            current="I", signals={"gain": 1.0}, receptors={"up": "g", "down": "g -= weight", "kick": "v += 2*weight"},
        )  # fmt: skip
        assert model.takes_current
        assert dict(model.signals) == {"gain": 1.0}
        assert model.receptors == ("up", "down", "kick")
        assert model.meanings["down"] == "g -= weight"
        assert "g += weight, in nS" in model.__doc__

    def test_help_shows_equations_parameters_and_method(self) -> None:
        model = equations(LIF, threshold="v > -50*mV", reset="v = e_rest", refractory=2.0, parameters=VALUES)
        assert textwrap.dedent(
            """
            Equations::

                dv/dt = (e_rest - v)/tau_m + i/c_m : mV (unless refractory)

            Threshold: `v > -50*mV`
            Reset: `v = e_rest`
            Refractory: `2.0 ms`
            Method: exact (chosen because the equations are linear with constant coefficients)

            Parameters (default)
            --------------------
            e_rest_mv  -70 mV
            tau_m_ms    10 ms
            c_m_pf     250 pF
            """
        ).strip() in (model.__doc__ or "")

    def test_a_model_can_be_pickled_and_has_the_same_source_in_every_process(self) -> None:
        given: dict[str, Any] = {"refractory": 2.0, "parameters": VALUES, "threshold": "v > -50*mV"}
        model = equations(LIF, **given)
        copy = pickle.loads(pickle.dumps(model))
        assert copy.source == model.source
        assert copy.values(0.1) == model.values(0.1)
        code = f"from neuraxis.network import equations\nm = equations({LIF!r}, **{given!r})"
        code += "\nprint(m.source, m.values(0.1))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == f"{model.source} {model.values(0.1)}\n"

    def test_sympy_is_not_imported_for_equations_that_are_linear_as_written(self) -> None:
        code = "import sys\nfrom neuraxis.network import equations\n"
        code += f"equations({LIF!r}, refractory=2.0, parameters={VALUES!r})"
        code += "\nequations('dv/dt = (v - v**3/(3*mV**2))/ms : mV')\nassert 'sympy' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


class TestUnits:
    def test_units_are_powers_of_ten_of_ms_mv_and_pa(self) -> None:
        factors = {"mV": 1.0, "volt": 1e3, "nS": 1.0, "siemens": 1e9, "ufarad": 1e6, "MOhm": 1e-3, "Hz": 1e-3,
                   "uA": 1e6, "umetre": 1e-6, "kHz": 1.0, "coulomb": 1e15, "gram": 1e21, "cm2": 1e-4}  # fmt: skip
        for name, factor in factors.items():
            assert NAMED[name].factor == factor, name
        assert NAMED["joule"] == NAMED["volt"] * NAMED["coulomb"]
        assert (NAMED["kgram"] * parse_unit("metre**2/second**2")) == NAMED["joule"]
        assert parse_unit("siemens*cm**-2") == NAMED["siemens"] * parse_unit("1/cm2")
        assert [shown(parse_unit(one)) for one in ("volt", "amp/second", "second**-0.5", "1", "ohm")] == [
            "mV", "pA/ms", "ms^-0.5", "no unit", "MOhm",
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("dv/dt = (e_rest - v)/tau_m + i : mV",
             "a sum of two units in `(e_rest - v) / tau_m + i`: `(e_rest - v) / tau_m` is in mV/ms, `i` is in pA"),
            ("dv/dt = (e_rest - v)/tau_m : mV\ndw/dt = v/tau_m : pA",
             "equations, line 2 `dw/dt = v/tau_m : pA`: dw/dt is in pA/ms, but `v / tau_m` is in mV/ms"),
            ("dv/dt = -v/tau_m : mV\nx = v + 5 : mV", "in `v + 5`: `v` is in mV, `5` has no unit"),
            ("dv/dt = -v*exp(v)/tau_m : mV", "exp takes a number without a unit, but `v` is in mV. Divide it"),
            ("dv/dt = -v/tau_m : mV\nx = v**v : 1", "the exponent of `v ** v` is in mV"),
            ("dv/dt = -v/tau_m : mV\nx = v**y : 1\ny = 2*v/mV : 1", "so the exponent must be a number"),
            ("dv/dt = -(v > 1*mV)*v/tau_m : mV", "`v > 1 * mV` is true or false; write int(...) around it"),
            ("dv/dt = -v/tau_m : furlong", "'furlong' is not a unit"),
            ("dv/dt = min(v, tau_m)/ms : mV", "a choice of two units in `min(v, tau_m)`"),
        ],
    )  # fmt: skip
    def test_sums_and_comparisons_need_one_unit(self, text: str, expected: str) -> None:
        values = {"e_rest": "-70*mV", "tau_m": "10*ms"}
        assert expected in refused(text, parameters={one: value for one, value in values.items() if one in text})

    def test_thresholds_resets_times_and_values_are_checked_too(self) -> None:
        text = "dv/dt = -v/(10*ms) : mV"
        assert "threshold `v > -50`: a comparison of two units" in refused(text, threshold="v > -50")
        assert "threshold `v`: `v` is not a condition" in refused(text, threshold="v")
        assert "reset, statement 2 `v = 5`: v is in mV, but `5` has no unit" in refused(
            text, threshold="v > 0", reset="v += 1*mV; v = 5"
        )
        assert "a refractory time is in ms, but `5 * mV` is in mV" in refused(text, refractory="5*mV")
        assert "initial['v'] `2*ms`: v is in mV" in refused(text, initial={"v": "2*ms"})
        assert "parameters['tau'] `2*mV`: 'tau' is in ms, but its value is in mV" in refused(
            "dv/dt = -v/tau : mV\ntau : second", parameters={"tau": "2*mV"}
        )
        assert "line 2 `tau = 5*mV : ms`: 'tau' is in ms" in refused("dv/dt = -v/tau : mV\ntau = 5*mV : ms")

    def test_a_number_for_a_base_unit_is_refused(self) -> None:
        found = refused("dv/dt = (el - v)/ms : volt\nel : volt", parameters={"el": -0.07})
        assert "parameters: el=-0.07: the unit is not clear. Write '-0.07*mV', or give it as el_mv" in found

    def test_zero_has_every_unit(self) -> None:
        equations("dv/dt = (0 - v)/ms : mV", threshold="v > 0", reset="v = 0")


class TestMethods:
    def test_the_default_is_the_best_that_fits(self) -> None:
        assert method_of(LIF, refractory=2.0, parameters=VALUES).startswith("Method: exact (")
        assert method_of("dv/dt = g*v/ms : mV\ndg/dt = -g/ms : 1").startswith("Method: exponential_euler (")
        assert method_of("dv/dt = v**2/(mV*ms) : mV").startswith("Method: rk4 (")
        assert method_of("dv/dt = -v/ms + mV*xi/ms**0.5 : mV").startswith("Method: euler (")
        assert method_of("dv/dt = (sin(t/ms)*mV - v)/ms : mV").startswith("Method: exponential_euler (")
        assert method_of("dv/dt = (v**2 - (v - 1*mV)**2)/mV/ms : mV").startswith("Method: exact (")
        assert method_of("dv/dt = -v*x/ms : mV\nx = (v/mV + 1)**2 - (v/mV)**2 - 2*v/mV : 1").startswith(
            "Method: exact ("
        )
        assert method_of("dv/dt = -v/ms : mV", method="rk2") == "Method: rk2"

    def test_a_method_that_does_not_fit_names_the_equation(self) -> None:
        text = "dw/dt = -w/ms : 1\ndv/dt = w*v/ms : 1"
        found = refused(text, method="exact")
        assert found.startswith(
            "equations, line 2 `dv/dt = w*v/ms : 1`: method='exact' needs equations that are linear"
        )
        assert "Use 'exponential_euler', 'rk4', 'rk2' or 'euler'." in found
        assert "here in v. Use 'rk4'" in refused("dv/dt = v**2/ms : 1", method="exponential_euler")
        assert "cannot be used with xi" in refused("dv/dt = xi/ms**0.5 : 1", method="rk4")
        assert "method='heun'" in refused(text, method="heun")

    def test_exponential_euler_keeps_functions_of_a_variable_at_their_value(self) -> None:
        text = "dv/dt = -m_inf*(v - 1)/ms : 1\nm_inf = 1/(1 + exp(-v)) : 1"
        assert method_of(text).startswith("Method: rk4")
        assert method_of(text, method="exponential_euler") == "Method: exponential_euler"

    def test_without_sympy_the_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "sympy", None)
        with pytest.raises(MissingDependency, match=r"\[equations\]"):
            equations("dv/dt = (v**2 - (v - 1)**2)/ms : 1")
        assert equations("dv/dt = (v**2 - (v - 1)**2)/ms : 1", method="rk4").name == "neuron"


class TestMistakes:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("dv/dt = -v/ms", "line 1 `dv/dt = -v/ms`: the unit is missing"),
            ("\n\ndv/dt = (v/ms : mV", "line 3"),
            (
                "dv/dt = -v/ms : mV (event-driven)",
                "(event-driven) cannot be used here; there is (unless refractory)",
            ),
            ("dv/dt = -v/ms : mV\nx : 1 (linked)", "there is (constant) or (shared)"),
            ("dv/dt = -v/ms : mV\nv : mV", "'v' is defined before"),
            ("x = 3 : 1", "there is no differential equation"),
            (
                "dv/dt = -v/tua : mV\ntau = 1*ms : ms",
                "'tua' is not known. Declare it, as `tua : mV`, or give its value, as parameters={'tua': '20*mV'}; did",
            ),
            ("dv/dt = -v/tau : mV\ntau : ms", "'tau' has no value"),
            ("dv/dt = -v/ms^2 : mV", "Write ** for a power"),
            ("dv/dt = x*mV : mV\nx = y : 1/ms\ny = x : 1/ms", "sub-expressions depend on each other: x -> y -> x"),
            ("dmV/dt = 1/ms : 1", "'mV' is the name of a unit"),
            ("dt/dt = 1 : 1", "'t' has a meaning of its own"),
            ("ddt_ms/dt = 1 : ms", "taken"),
            ("dspike/dt = -spike/ms : 1", "taken"),
            ("dv/dt = -v/ms : mV (unless refractory)", "(unless refractory) needs a refractory time"),
            ("dv/dt = foo(v)/ms : mV", "the function `foo` is not known"),
            ("dv/dt = exp(v, v)/ms : mV", "exp takes 1 value"),
            ("dv/dt = randn()*mV/ms : mV", "`randn` cannot be used in equations. Use xi for noise, and a distribution"),
            ("dv/dt = xi*mV/ms**0.5 + xi_2*mV/ms**0.5 : mV", "a second noise beside xi"),
        ],
    )
    def test_the_line_and_what_is_allowed_are_named(self, text: str, expected: str) -> None:
        found = refused(text)
        assert expected in found
        assert found.startswith("equations")

    def test_other_arguments(self) -> None:
        text = "dv/dt = -v/ms : mV\ng = 2*v : mV\nb = 2*mV : mV"
        assert "'g' cannot be assigned to; there is 'v'" in refused(text, threshold="v > 0", reset="g = 2*mV")
        assert "reset `v == 3`: an assignment is expected" in refused(text, reset="v == 3")
        assert "no parameter 'c'" in refused(text, parameters={"c": 3})
        assert "Give its initial value in initial=" in refused(text, parameters={"v": "3*mV"})
        assert "no variable 'u'" in refused(text, initial={"u": 3})
        assert "xi can be used in differential equations only" in refused(text, reset="v = xi*mV*ms**0.5")
        assert "a name of letters" in refused(text, name="lambda")
        assert "is taken by a variable" in refused(text, receptors={"v": "v"})
        assert "depends on parameters alone" in refused(text, refractory="v/mV*ms")
        for spec in (
            "v += weight**2/mV",
            "v += 3*mV + weight",
            "v = weight",
            "v *= weight",
            "v += weight; v += weight",
        ):
            assert "increase" in refused(text, receptors={"input": spec}) or "one assignment" in refused(
                text, receptors={"input": spec}
            )
        with pytest.raises(InvalidType):
            equations(3)  # type: ignore[arg-type]
        with pytest.raises(InvalidType):
            equations(text, threshold=3)  # type: ignore[arg-type]
        with pytest.raises(InvalidType, match=r"receptors='v': a dict is expected, as receptors=\{'input': 'v'\}"):
            equations(text, receptors="v")  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "expression",
        [
            "__import__('os').system('true')", "v.__class__", "v[0]", "[v for v in (1,)][0]", "(lambda: v)()", "'v'",
            "f'{v}'", "eval(v)", "open(v)", "v if v else __builtins__", "(v := 3)", "*v", "v @ v", "v and v.real",
            "exp(x=v)",
            "~v",
            "9" * 400, "1j", "v is v", "1e999", "await v", "b'v'", "...", "None", "v\\", "é",
        ],
    )  # fmt: skip
    def test_text_is_never_code(self, expression: str) -> None:
        assert refused(f"dv/dt = {expression} : 1/ms").startswith("equations, line 1")
        refused("dv/dt = -v/ms : mV", threshold=expression)
        refused("dv/dt = -v/ms : mV", reset=f"v = {expression}")
        refused("dv/dt = -v/ms : mV", initial={"v": expression})
        refused("dv/dt = -v/ms : mV\na : mV", parameters={"a": expression})

    @pytest.mark.parametrize(
        "text",
        [
            "dv/dt = " + "(" * 300 + "v" + ")" * 300 + "/ms : 1",
            "dv/dt = " + "-" * 5000 + "v/ms : 1",
            "dv/dt = " + "+".join(["v"] * 3000) + " : 1",
            "dv/dt = v/ms : " + "volt*" * 500 + "volt",
            "dv/dt = v/ms : 1\nx = 9.0**9.0**9.0**9.0 : 1",
            "dv/dt = v/ms : 1" + "#" * 60_000,
            "dv/dt = v/ms : mV**99999999",
        ],
    )
    def test_large_text_is_refused_quickly(self, text: str) -> None:
        refused(text)

    def test_expressions_that_grow_when_written_out_stay_small(self) -> None:
        lines = ["dv/dt = x40/ms : 1", "x0 = v : 1", *(f"x{k + 1} = x{k}*x{k} - x{k} : 1" for k in range(40))]
        model = equations("\n".join(lines))
        assert len(model.source) < 100_000
        assert "rk4" in model.description
