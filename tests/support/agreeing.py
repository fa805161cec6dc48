"""Replicas that agree on changes, without I/O: their words, their network and their clock are in the hands of a test."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from kvatlas.fleet.replicas.agreement import Agreement, Check, Outcome, PutInForce
from kvatlas.fleet.replicas.word import Changes, Stamp, Word, decoded, encoded

MS = 1_000_000
MAX_ROUNDS = 2000
"""More than any exchange takes that comes to an end."""

LIMIT_NS, SILENCE_NS, PATIENCE_NS = 800 * MS, 1000 * MS, 5000 * MS


@dataclass
class Node:
    """One replica and its configuration."""

    id: str
    agreement: Agreement
    actions: list[Check | PutInForce] = field(default_factory=list[Check | PutInForce])
    live: Changes = field(default_factory=Changes)
    history: list[Changes] = field(default_factory=list[Changes])
    """All that was ever in force here."""
    outcomes: dict[int, Outcome] = field(default_factory=dict[int, Outcome])
    asked: dict[int, dict[str, bytes | None]] = field(default_factory=dict[int, dict[str, bytes | None]])
    boot: int = 0

    @property
    def name(self) -> str:
        return self.id.partition("/")[0]


class Network:
    """Replicas `r0`, `r1`, ...; a value that starts with `bad-` and a replica's name is refused by that replica.

    Words come in order; one that a newer word overtakes may be lost, as the wholes and numbers of `Replica` see to.
    """

    def __init__(self, n: int) -> None:
        self.now_ns = 0
        self.nodes = {f"r{each}": self._node(f"r{each}", 0) for each in range(n)}
        self.cut: set[frozenset[str]] = set()
        self.silent_since: dict[frozenset[str], int] = {}
        self.sent: defaultdict[tuple[str, str], list[tuple[str, bytes]]] = defaultdict(list)
        """(from, to) -> words on their way, with the life that said them."""
        self.known: dict[tuple[str, str], str] = {}
        """(of, at) -> the life of a sibling that a replica takes for living."""
        self.gone: list[Node] = []
        self.say_all()

    def _node(self, name: str, boot: int) -> Node:
        replica = f"{name}/{boot:016x}"
        agreement = Agreement(
            replica,
            name,
            living=lambda: [life for (_, at), life in self.known.items() if at == name],
            clock=lambda: self.now_ns,
            limit_ns=LIMIT_NS,
            patience_ns=PATIENCE_NS,
        )
        return Node(replica, agreement, boot=boot)

    def propose(self, name: str, changed: dict[str, bytes | None], *, force: bool = False) -> int:
        node = self.nodes[name]
        before = node.agreement.word
        ticket = node.agreement.propose(changed, force=force)
        node.asked[ticket] = changed
        self._after(name, before)
        return ticket

    def act(self, name: str) -> bool:
        """Do the first thing that a replica has to do; return whether there was one."""
        node = self.nodes[name]
        if not node.actions:
            return False
        before = node.agreement.word
        match node.actions.pop(0):
            case Check(changes):
                node.agreement.checked(changes.stamp, self._refusal(name, changes))
            case PutInForce(changes):
                refusal = self._refusal(name, changes)
                if not refusal:
                    node.live = changes
                    node.history.append(changes)
                number = max(node.agreement.word.generation, changes.stamp.number)
                node.agreement.in_force(changes.stamp, generation=number, digest="", refusal=refusal)
        self._after(name, before)
        return True

    def deliver(self, of: str, to: str, *, skip: int = 0) -> bool:
        """Deliver a word, and lose up to `skip` before it; the newest one always comes."""
        words = self.sent[of, to]
        if not words or frozenset((of, to)) in self.cut:
            return False
        del words[: min(skip, len(words) - 1)]
        life, payload = words.pop(0)
        node = self.nodes[to]
        before = node.agreement.word
        known = self.known.get((of, to))
        if known is not None and known != life:
            node.agreement.gone(known)
        self.known[of, to] = life
        node.agreement.heard(life, decoded(payload, life))
        self._after(to, before)
        return True

    def pass_time(self, ns: int) -> None:
        """Let time pass; a sibling beyond a cut is dropped after its silence."""
        self.now_ns += ns
        for pair, since in list(self.silent_since.items()):
            if self.now_ns - since >= SILENCE_NS:
                a, b = pair
                for of, at in ((a, b), (b, a)):
                    if (life := self.known.pop((of, at), None)) is not None:
                        before = self.nodes[at].agreement.word
                        self.nodes[at].agreement.gone(life)
                        self._after(at, before)
        for name, node in self.nodes.items():
            before = node.agreement.word
            node.agreement.tick()
            self._after(name, before)

    def separate(self, a: str, b: str) -> None:
        pair = frozenset((a, b))
        self.cut.add(pair)
        self.silent_since.setdefault(pair, self.now_ns)

    def heal(self) -> None:
        """Join all; every replica says all again."""
        self.cut.clear()
        self.silent_since.clear()
        self.say_all()

    def restart(self, name: str) -> None:
        """Kill a replica; its next life knows nothing, and its siblings see that it is another."""
        old = self.nodes[name]
        self.gone.append(old)
        for other in self.nodes:
            self.sent[name, other].clear()
            self.known.pop((other, name), None)
        self.nodes[name] = self._node(name, old.boot + 1)
        self.say_all()

    def say_all(self) -> None:
        for name, node in self.nodes.items():
            self._say(name, node.agreement.word)

    def settle(self) -> None:
        """Deliver and do everything, and let time pass, until nothing more happens."""
        self.heal()
        for _ in range(40):
            n_rounds = 0
            while self._round():
                n_rounds += 1
                assert n_rounds < MAX_ROUNDS, [node.agreement.word for node in self.nodes.values()]
            self.pass_time(500 * MS)
        assert not self._round()

    def _round(self) -> bool:
        pairs = [(a, b) for a in self.nodes for b in self.nodes if a != b]
        return any([self.deliver(a, b) for a, b in pairs] + [self.act(name) for name in self.nodes])

    def _say(self, name: str, word: Word) -> None:
        for other in self.nodes:
            if other != name:
                self.sent[name, other].append((self.nodes[name].id, encoded(word)))

    def _after(self, name: str, before: Word) -> None:
        node = self.nodes[name]
        for action in node.agreement.todo():
            if isinstance(action, Outcome):
                assert action.ticket not in node.outcomes
                node.outcomes[action.ticket] = action
            else:
                node.actions.append(action)
        if node.agreement.word != before:
            self._say(name, node.agreement.word)

    @staticmethod
    def _refusal(name: str, changes: Changes) -> str:
        bad = [value for value in changes.values.values() if value.startswith(f"bad-{name}".encode())]
        return f"{bad[0].decode()} is impossible" if bad else ""


def stamps(network: Network) -> set[Stamp]:
    """Return the stamps in force."""
    return {node.live.stamp for node in network.nodes.values()}
