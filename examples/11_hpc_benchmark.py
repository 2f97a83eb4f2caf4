"""NEST's hpc_benchmark: a network whose excitatory synapses learn (STDP), with up to 11,250 inputs for every neuron.

python examples/11_hpc_benchmark.py --scale 0.1 --time-ms 200
python examples/11_hpc_benchmark.py --workers 2 --discard-ms 50 --time-ms 250        (1 GB of memory)

See src/neuraxis/network/library/hpc_benchmark.py for the model.
"""

from neuraxis.cli.network_command import RunOptions, network_app, run_and_report
from neuraxis.network.library import hpc_benchmark

app = network_app("The plastic network of NEST's hpc_benchmark.")


@app.default
def main(*, scale: float = 1.0, plastic: bool = True, run: RunOptions = RunOptions()) -> None:  # noqa: B008
    """Run the benchmark's network.

    Parameters
    ----------
    scale
        Neurons in units of 11,250; each has 11,250 inputs, or fewer in proportion below scale 1.
    plastic
        Whether the synapses between excitatory neurons learn.
    """
    run_and_report(hpc_benchmark(scale, plastic, seed=run.seed), run)


if __name__ == "__main__":
    app()
