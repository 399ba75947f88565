"""How long a program waits for its asynchronous copies and messages, by the order in which the compiler scheduled them.

A TPU's copies between main and fast memory, and some messages, have a start and an end. Other operations may run in
between, and the program waits at the end for what is still missing. The compiler chose where to put both by a model of
its own, which this one follows: `RuntimeSimulator` in openxla/xla, xla/service/memory_space_assignment/simulator.cc.
"""

import dataclasses
from collections import deque


@dataclasses.dataclass
class Schedule:
    """Copies and messages under way while the operations of one computation run in order.

    Copies take turns in the order in which they were started, and use only the time in which a running operation leaves
    main memory idle. Messages take turns too.

    Attributes:
        bandwidth: bytes per second of main memory.
        clock: seconds since the computation began.
        linked: seconds at which the links have sent all messages so far.
        copies: names and remaining bytes of the copies under way, the first one first.
        messages: seconds at which each message under way ends, by name.
    """

    bandwidth: float
    clock: float = 0.0
    linked: float = 0.0
    copies: deque[tuple[str, float]] = dataclasses.field(default_factory=deque)
    messages: dict[str, float] = dataclasses.field(default_factory=dict)

    def start_copy(self, name: str, moved: int) -> None:
        """Starts a copy of `moved` bytes to or from main memory."""
        self.copies.append((name, moved))

    def start_message(self, name: str, seconds: float) -> None:
        """Starts a message that takes `seconds` once those before it are sent."""
        self.linked = max(self.linked, self.clock) + seconds
        self.messages[name] = self.linked

    def run(self, seconds: float, moved: int = 0) -> None:
        """Runs an operation that itself moves `moved` bytes; copies under way use the time that these leave."""
        self.clock += seconds
        room = seconds * self.bandwidth - moved
        while self.copies and room > 0:
            name, left = self.copies.popleft()
            if left > room:
                self.copies.appendleft((name, left - room))
            room -= left

    def wait(self, name: str) -> float:
        """Waits for a copy or message. Returns the seconds that this takes; 0 if it is done or was never started."""
        if name in self.messages:
            seconds = max(0.0, self.messages.pop(name) - self.clock)
        else:
            names = [each for each, _ in self.copies]
            ahead = list(self.copies)[: names.index(name) + 1] if name in names else []
            seconds = sum(left for _, left in ahead) / self.bandwidth
        self.run(seconds)
        return seconds
