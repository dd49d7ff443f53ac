"""What tiny-switch learns: pairs of source and target, made from the texts in tests/data and by rules.

A word names the task: fill (put back what sentinels stand for), last (the last sentence once more), continue (the
words that follow), lower (capitals to small letters), sort (words by the alphabet), sum (two numbers).
"""
import random
import re

TASKS = ["fill", "last", "continue", "lower", "sort", "sum"]
DOMAINS = ["stories", "math", "code"]


def documents(data, part):
    """[domain] -> documents of tests/data/DOMAIN.PART.txt, white space as single spaces."""
    out = {}
    for domain in DOMAINS:
        with open(f"{data}/{domain}.{part}.txt", encoding="utf-8") as f:
            texts = [" ".join(d.split()) for d in f.read().split("<|endoftext|>")]
        out[domain] = [t for t in texts if len(t) > 200]
    return out


class Maker:
    """Makes pairs from some documents, by a generator of its own."""

    def __init__(self, docs, seed):
        self.docs, self.random = docs, random.Random(seed)
        text = " ".join(docs["stories"] + docs["math"])
        self.words = sorted({w for w in re.findall(r"\b[a-z]{2,7}\b", text)})
        self.sentences = [s for d in docs["stories"] + docs["math"] for s in re.split(r"(?<=[.!?]) (?=[A-Z\"])", d)
                          if 3 <= len(s.split()) <= 14]

    def passage(self, low, high, domains=("stories", "stories", "math", "code")):
        words = self.random.choice(self.docs[self.random.choice(domains)]).split()
        n = min(self.random.randint(low, high), len(words))
        first = self.random.randint(0, len(words) - n)
        return words[first:first + n]

    def fill(self):
        words, source, target, i, k = self.passage(12, 24), [], [], 0, 0
        while i < len(words):
            n = self.random.randint(1, 3)
            if self.random.random() < 0.12 and k < 4 and i + n < len(words):
                source.append(f"<extra_id_{k}>")
                target += [f"<extra_id_{k}>"] + words[i:i + n]
                i, k = i + n, k + 1
            source.append(words[i])
            i += 1
        return " ".join(source), " ".join(target + [f"<extra_id_{k}>"])

    def last(self):
        chosen = [self.random.choice(self.sentences) for _ in range(self.random.randint(1, 3))]
        return " ".join(chosen), chosen[-1]

    def proceed(self):
        words = self.passage(20, 30)
        return " ".join(words[:-8]), " ".join(words[-8:])

    def lower(self):
        words = " ".join(self.passage(2, 5, ("stories", "math")))
        return words.upper(), words.lower()

    def sort(self):
        words = self.random.sample(self.words, self.random.randint(2, 5))
        return " ".join(words), " ".join(sorted(words))

    def sum(self):
        a, b = (self.random.randrange(10 ** self.random.randint(1, 3)) for _ in range(2))
        return f"{a} + {b}", str(a + b)

    def pair(self, task):
        source, target = getattr(self, "proceed" if task == "continue" else task)()
        return dict(task=task, source=f"{task}: {source}", target=target)

    def any(self):
        return self.pair(self.random.choice(TASKS))


def held_out(data, part, n):
    """n pairs a task for choosing ("calib") or judging ("valid"): from the valid texts, of which nothing was trained
    on, the two parts from different documents."""
    docs = documents(data, "valid")
    half = {d: t[:len(t) // 2] if part == "calib" else t[len(t) // 2:] for d, t in docs.items()}
    maker = Maker(half, part)
    return [maker.pair(task) for task in TASKS for _ in range(n)]
