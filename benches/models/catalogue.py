"""All models of the table."""

from families import (
    audio, converted, decoders, dense, diffusion, encoders, images, plain, real_widths, series, signals, vision,
)

FAMILIES = [decoders, plain, encoders, converted, vision, dense, diffusion, audio, series, images, signals, real_widths]


def entries():
    found = [entry for family in FAMILIES for entry in family.entries()]
    names = [entry.name for entry in found]
    assert len(set(names)) == len(names), sorted(name for name in names if names.count(name) > 1)
    return found
