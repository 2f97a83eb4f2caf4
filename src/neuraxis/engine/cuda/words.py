"""The words of the tables that describe a network to the kernels on the GPU; both sides have them from here."""

from __future__ import annotations

from neuraxis.engine import plan

__all__ = ["WORDS", "defines", "word"]

_TABLES: dict[str, str] = {
    # The plan: what a launch works on. Addresses, and numbers of things.
    "P_": (
        "BLOCKS CELLS SLOTS ACCUMULATORS ROWS RECORDS WORDS RING MAIL MANY LINE_MASK LOST POPULATION_ROWS "
        "POPULATIONS POPULATION_OF_ROW POPULATION_OF_CELL PLACE_OF_CELL COUNT_SLOTS POPULATION_COUNTS OUTSIDE "
        "OUTSIDE_COUNT POISSONS PULSES STATES SPIKE_COUNTS POPULATION_SPIKES RECORDED_CELLS SPIKE_RECORD "
        "RECORD_ROOM RECORDED NOTES NOTE_ROOM NOTED INPUTS INPUT_STARTS PROBES PROBE_COUNT SAMPLES "
        "CONSTANTS CONSTANT_WORDS MODULATORS MODULATOR_ROWS RELEASES LEVELS_BEFORE LEVELS_AFTER "
        "SIGNALS_BEFORE SIGNALS_AFTER RHYTHMS RHYTHM_COUNT COSINES CELL_BITS TIES TIE_COUNT TOTALS PLASTICS "
        "PLASTIC_COUNT PARTS TABLES TABLE_WORDS TICKS FULL PAST PAST_STARTS PAST_FIRST PAST_STEPS"
    ),
    # A population that has neurons here.
    "Q_": (
        "MODEL CONSTANTS RECEPTORS SILENT OWN_CURRENT POISSON_FIRST POISSON_END PULSE_FIRST PULSE_END "
        "PLASTIC_FIRST PLASTIC_END FIRST_PLACE FIRST_ID RECORD"
    ),
    # A Poisson input: thresholds (their number), or (probability of none, mean) of each neuron.
    "G_": "THRESHOLDS TABLE TABLE_PLACE WEIGHT RECEPTOR START STOP",
    # A pulse of current.
    "U_": "START STOP BITS VALUES",
    # A probe of a state.
    "B_": "ROW EVERY COUNT STARTS CELLS",
    # A projection to draw.
    "J_": (
        "PLACING KIND PROJECTION N_PRE N_POST NO_SELF DISTINCT SHARE GROUPS SEED FIRST LAST FIRST_PLACE "
        "COUNTS LISTED LISTED_FIRST LISTED_ORDER WEIGHT_KIND WEIGHT WEIGHT_1 WEIGHT_2 WEIGHT_3 WEIGHT_4 "
        "WEIGHT_VALUES DELAY_KIND DELAY DELAY_1 DELAY_2 DELAY_3 DELAY_4 DELAY_VALUES DT LONGEST URGENT "
        "RECEPTOR INVERSE_LSB LARGEST SHIFT BLOCKS CELLS ROWS PRE_FIRST PRE_LAST PRE_PLACE PRE_OUTSIDE "
        "SEGMENT_COUNTS RECORDS WORDS TOTALS CLIPPED SYNAPSES SHIFT_OF_ROW NORMAL_TABLE "
        "INDEX STARTS SEGMENTS CLASSES CLASS_OF_DELAY IN_DEGREES TARGET_CELLS DRAWN"
    ),
    # A table of plastic synapses.
    "T_": (
        "KIND PRE_PLACE PRE_N PRE_FIRST PRE_OUTSIDE PRE_ALL POST_PLACE POST_N RECEPTOR SEGMENTS CLASSES DELAYS "
        "INDEX STARTS CELLS WEIGHTS ELIGIBILITIES PARAMETERS LAST APPLIED TRACE RESOURCE DECAY_PLUS DECAY_MINUS "
        "DECAY_FACILITATION POST_COUNT POST_STEPS POST_TRACES CAPACITY FLUSHED EVERY LEVEL SCALE_EVERY "
        "SCALE_COUNT FROZEN"
    ),
    # A level of the trees that in-degrees of fixed totals are drawn down.
    "D_": "LEVEL PROJECTIONS TREES SEED",
    # A tree.
    "DT_": "PROJECTION N_POST COUNTS",
    # Where the time of a launch goes.
    "TICKS_": "WAITING UPDATING PUBLISHING DELIVERING",
    # What a launch counted.
    "TOTAL_": "STEP SAMPLED HASH EVENTS PENDING RECORDED NOTED",
}

# What the number of a table's words is called, where it is not the prefix and WORDS (which is a word of these).
_SIZES = {"P_": "PLAN_WORDS", "J_": "JOB_WORDS"}

WORDS: dict[str, int] = {}
for _prefix, _names in _TABLES.items():
    for _at, _name in enumerate(_names.split()):
        WORDS[_prefix + _name] = _at
    WORDS[_SIZES.get(_prefix, _prefix + "WORDS")] = len(_names.split())
# Tables that both engines read alike.
for _name, _value in vars(plan).items():
    if _name.startswith(("M_", "R_", "Y_", "F_")) and isinstance(_value, int):
        WORDS[_name] = _value
WORDS["DECAY_CELLS"] = plan.DECAY_CELLS
for _name in ("PLAIN", "STDP_BOUNDED", "STDP_POWER", "REWARD", "SHORT_TERM"):
    WORDS[_name] = getattr(plan, _name)


def word(name: str) -> int:
    return WORDS[name]


def defines() -> str:
    """The words as C++ has them."""
    return "".join(f"#define {name} {value}\n" for name, value in WORDS.items())
