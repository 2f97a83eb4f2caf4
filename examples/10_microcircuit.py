"""The cortical microcircuit of Potjans and Diesmann: 77,169 neurons, 298.9 million synapses at full scale.

python examples/10_microcircuit.py --scale 0.1 --time-ms 500 --plot microcircuit.png
python examples/10_microcircuit.py --workers 2 --discard-ms 500 --time-ms 10000        (full scale: 1.5 GB of memory)

See src/neuraxis/network/library/microcircuit.py for the model: eight populations in four layers.
"""

from typing import Literal

from neuraxis.cli.network_command import RunOptions, network_app, run_and_report
from neuraxis.network.library import microcircuit

app = network_app("The cortical microcircuit of Potjans and Diesmann (2014).")


@app.default
def main(
    *,
    scale: float = 1.0,
    drive: Literal["poisson", "dc"] = "poisson",
    run: RunOptions = RunOptions(),  # noqa: B008
) -> None:
    """Run the microcircuit.

    Parameters
    ----------
    scale
        Share of the neurons and of their inputs, above 0 and up to 1.
    drive
        External input: Poisson spikes, or a constant current.
    """
    run_and_report(microcircuit(scale, drive, seed=run.seed), run)


if __name__ == "__main__":
    app()
