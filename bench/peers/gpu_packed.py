"""What adapters share whose kernels keep h of all slices in one tensor, [n, S*r]."""

from implementation import Op


def runs_of(slots):
    """[(slot, length)] of neighbours with one slot."""
    runs = []
    for slot in slots:
        if runs and runs[-1][0] == slot:
            runs[-1][1] += 1
        else:
            runs.append([slot, 1])
    return runs


def sorted_by_slot(slots):
    return sorted(range(len(slots)), key=lambda t: slots[t])


def as_slices(h, problem):
    """[n, S*r] -> [S, n, r]."""
    row = problem.row
    return h.view(row.tokens, len(row.widths), row.rank).transpose(0, 1)


def as_packed(h):
    return h.transpose(0, 1).reshape(h.shape[1], -1).contiguous()


def two_stages(problem, shrink, expand):
    """shrink(x, a) -> h [n, S*r]; expand(h, b) adds to y."""
    op, last = problem.row.op, [None]
    given = as_packed(problem.h)

    def launch(copy):
        h = given if op == "expand" else shrink(problem.x, problem.a[copy])
        last[0] = h
        if op != "shrink":
            expand(h, problem.b[copy])

    return Op(launch, lambda: as_slices(last[0], problem) if op == "shrink" else problem.y)
