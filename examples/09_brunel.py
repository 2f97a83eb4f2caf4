"""Brunel's network of 12,500 neurons: build it, run it on any number of workers, see the same spikes.

python examples/09_brunel.py --workers 2 --plot brunel.png
python examples/09_brunel.py --order 250 --time-ms 200        (a tenth of the size)

The network is described in src/neuraxis/network/library/brunel.py, in a dozen lines: two populations, four
projections, one Poisson input each. The fingerprint at the end hashes every spike and every membrane: run it with
another --workers and compare.
"""

from neuraxis.cli.network_command import RunOptions, network_app, run_and_report
from neuraxis.network.library import brunel

app = network_app("Brunel's random network of excitatory and inhibitory neurons (2000).")


@app.default
def main(*, order: int = 2500, g: float = 5.0, eta: float = 2.0, run: RunOptions = RunOptions()) -> None:  # noqa: B008
    """Run Brunel's network.

    Parameters
    ----------
    order
        A fifth of the number of neurons.
    g
        Strength of inhibition relative to excitation.
    eta
        External drive relative to what would just reach threshold.
    """
    run_and_report(brunel(order, g=g, eta=eta, seed=run.seed), run)


if __name__ == "__main__":
    app()
