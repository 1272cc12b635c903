"""torch.bmm over equal groups: what cuBLAS makes of it. It cannot do ragged groups, so it is no
peer but a yardstick; the tokens of an adapter are neighbours for it in decode too."""

import torch

from implementation import Implementation, Op, Unsupported
from rows import SCALING


def _prepare(problem):
    row = problem.row
    group = row.tokens // row.adapters
    if row.kind == "Pz" or group * row.adapters != row.tokens:
        raise Unsupported("groups are not equal")
    x = problem.x.view(row.adapters, group, row.num_in)
    y = problem.y.view(row.adapters, group, row.columns)
    slices = len(row.widths)
    h = problem.h.transpose(0, 1).reshape(row.adapters, group, slices * row.rank).contiguous()

    def launch(copy):
        if row.op != "expand":
            torch.bmm(x, problem.a[copy].transpose(1, 2), out=h)
        if row.op != "shrink":
            for i, (begin, end) in enumerate(zip(row.offsets, row.offsets[1:])):
                out = y[:, :, begin:end]
                torch.baddbmm(out, h[:, :, i * row.rank:(i + 1) * row.rank],
                              problem.b[copy][:, begin:end].transpose(1, 2), alpha=SCALING, out=out)

    def output():
        if row.op == "shrink":
            return h.view(row.tokens, slices, row.rank).transpose(0, 1)
        return problem.y

    return Op(launch, output, slots=[t // group for t in range(row.tokens)])


def implementations(_):
    return [Implementation("torch_bmm", _prepare, kind="yardstick")]
