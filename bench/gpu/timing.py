"""Time of one operation inside a CUDA graph of many, chained in one stream."""

import contextlib
import statistics

import torch


class Timer:
    """Everything runs on one stream, that of the capture: workspaces that peers keep for a stream
    are there when they are captured."""

    def __init__(self):
        self.stream = torch.cuda.Stream()

    def eagerly(self, launch, copies):
        """Compiles, fills caches, and shows errors where they arise."""
        torch.cuda.synchronize()  # tensors come from another stream
        with torch.cuda.stream(self.stream):
            for copy in range(copies):
                launch(copy)
        self.stream.synchronize()

    def _graph(self, launch, copies, ops):
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for i in range(ops):
                    launch(i % copies)
            except BaseException:
                with contextlib.suppress(RuntimeError):  # the first error is the one to show
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph

    def once(self, launch, copies):
        """A graph of one operation with each copy, run once."""
        graph = self._graph(launch, copies, copies)
        with torch.cuda.stream(self.stream):
            graph.replay()
        self.stream.synchronize()

    def us(self, launch, copies, ops, replays):
        """launch(copy) is one operation. Of each replay the mean of its operations; of those the
        median, and how far they spread."""
        ops = -(-ops // copies) * copies
        graph = self._graph(launch, copies, ops)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
        with torch.cuda.stream(self.stream):
            for _ in range(max(3, replays // 8)):  # the clocks rise again
                graph.replay()
            for event in events[:-1]:
                event.record()
                graph.replay()
            events[-1].record()
        self.stream.synchronize()
        times = sorted(1e3 * a.elapsed_time(b) / ops for a, b in zip(events, events[1:]))
        return {"median_us": statistics.median(times), "p10_us": times[len(times) // 10],
                "p90_us": times[len(times) * 9 // 10], "replays": replays, "ops": ops}


def spin(seconds):
    """Work, until the clocks are up."""
    matrix = torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    while True:
        for _ in range(20):
            matrix @ matrix
        end.record()
        end.synchronize()
        if begin.elapsed_time(end) > 1e3 * seconds:
            return
