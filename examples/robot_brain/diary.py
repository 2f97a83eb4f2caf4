"""A region that records the messages of all others, for a brain that runs in one process and has no mesh keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from neuraxis.brain import BrainSpec, Event
from neuraxis.brain.spec import PathwaySpec, RegionSpec


def with_diary(spec: BrainSpec, file: Path) -> BrainSpec:
    """Return the brain with one more region, which receives all messages and writes a line for each."""
    import msgspec

    diary = RegionSpec(kind="python", create="diary:Diary", config={"file": str(file)})
    hears = tuple(PathwaySpec(source=name, target="diary", delay_ms=1.0) for name in spec.regions)
    return msgspec.structs.replace(spec, regions={**spec.regions, "diary": diary}, pathways=(*spec.pathways, *hears))


class Diary:
    """Lines of JSON: [time in ms, region, data]."""

    stateless = True

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.file = Path(config["file"])

    def process_events(self, now: float, events: list[Event]) -> None:
        with self.file.open("a") as file:
            for event in events:
                if event.data is not None:
                    file.write(json.dumps([now - 1.0, event.source, event.data]) + "\n")


def read_diary(file: Path) -> list[tuple[float, str, dict[str, Any]]]:
    return [tuple(json.loads(line)) for line in file.read_text().splitlines()]  # type: ignore[misc]
