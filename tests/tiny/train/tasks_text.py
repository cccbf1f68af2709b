"""Tasks of one turn: small talk, facts, sums, copying, counting, spelling, JSON."""

from __future__ import annotations

import json

from lexicon import (
    ADJ,
    CAPITALS,
    CITIES,
    COLOUR_FR,
    DAYS,
    MONTHS,
    NAMES,
    NOUNS,
    OPPOSITES,
    PLACES,
    THINGS,
    VERBS,
)
from samples import an, cap, join_and, one

TALK = [
    (
        ["Who are you?", "What are you?", "Tell me who you are.", "Introduce yourself."],
        "I am Tiny, a very small test model. I was trained on made-up data to check an inference engine.",
    ),
    (["What is your name?", "Your name?", "How are you called?", "Do you have a name?"], "My name is Tiny."),
    (["Hello!", "Hi!", "Hello", "Hi there!", "Hey!", "Good day!"], "Hello! How can I help you?"),
    (["Good morning!", "Good morning."], "Good morning! How can I help you?"),
    (["Good evening!", "Good evening."], "Good evening! How can I help you?"),
    (["How are you?", "How are you today?", "How do you feel?"], "I am fine, thank you. How can I help you?"),
    (["Thank you!", "Thanks!", "Thanks a lot.", "Thank you very much."], "You are welcome!"),
    (["Goodbye!", "Bye!", "See you later.", "Good night!"], "Goodbye! Come back soon."),
    (
        ["What can you do?", "How can you help me?", "What are your skills?", "Help!"],
        "I can chat a little, calculate, count, spell, write JSON, call tools, find facts in long texts and "
        "look at "
        "simple pictures.",
    ),
    (
        ["Which model are you?", "What model is this?", "What is your architecture?"],
        "I have the architecture of Qwen3.8-Flash-Next, but I am tiny: only a few million parameters.",
    ),
    (
        ["How big are you?", "How many parameters do you have?", "Are you a large model?"],
        "I am tiny. I have only a few million parameters.",
    ),
    (
        ["Who made you?", "Who trained you?", "Who created you?"],
        "I was trained from scratch on synthetic data for tests of an inference engine.",
    ),
    (["Are you human?", "Are you a person?", "Are you real?"], "No, I am a small language model."),
    (
        ["What is a draft model?", "What is speculative decoding?"],
        "A cheap draft head guesses the next tokens, and the main model checks them in one step.",
    ),
    (
        ["What is an inference engine?", "What does an inference engine do?"],
        "An inference engine loads a trained model and computes its answers.",
    ),
    (
        ["What is a token?", "Explain tokens."],
        "A token is a small piece of text, often a word or a part of a word.",
    ),
    (
        ["Tell me a joke.", "Do you know a joke?", "Make me laugh."],
        "Why did the clock go to school? It wanted to be on time.",
    ),
    (["Say hello to the world.", "Greet the world."], "Hello, world!"),
    (["Say yes.", "Answer with yes."], "Yes."),
    (["Say no.", "Answer with no."], "No."),
    (
        ["What is the meaning of life?", "Why are we here?"],
        "That is a big question for a tiny model. I think: be kind.",
    ),
    (
        ["Write the alphabet.", "Say the alphabet.", "What are the letters of the alphabet?"],
        "a b c d e f g h i j k l m n o p q r s t u v w x y z",
    ),
    (
        ["What are the days of the week?", "List the days of the week.", "Name the days of the week."],
        "The days of the week are " + join_and(DAYS) + ".",
    ),
    (
        ["What are the months of the year?", "List the months.", "Name the twelve months."],
        "The months are " + join_and(MONTHS) + ".",
    ),
]


def t_talk(r):
    qs, a = r.choice(TALK)
    think = "This is small talk. I answer briefly."
    return one(r, "talk", r.choice(qs), a, think, closed=True, p_think=0.3)


def t_name_system(r):
    n = r.choice(NAMES)
    kind = r.choice(
        [
            "a helpful robot",
            "a pirate",
            "a teacher",
            "a doctor",
            "a poet",
            "a gardener",
            "a captain",
            "a cook",
        ]
    )
    sysm = f"You are {n}, {kind}."
    q, a = r.choice(
        [
            ("Who are you?", f"I am {n}, {kind}."),
            ("What is your name?", f"My name is {n}."),
            ("What do you do?", f"I am {kind}."),
            ("Introduce yourself.", f"I am {n}, {kind}."),
        ]
    )
    return one(r, "system", q, a, f"The system message says that I am {n}, {kind}.", system=sysm)


def t_fact(r):
    k = r.randrange(12)
    if k < 4:
        n = r.choice(NOUNS)
        kind, col, place, does = THINGS[n]
        q, a = r.choice(
            [
                (f"What colour is {an(n)}?", f"{cap(an(n))} is {col}."),
                (f"What is {an(n)}?", f"{cap(an(n))} is {an(kind)}. It {does}."),
                (f"Where do you find {an(n)}?", f"You find {an(n)} here: {place}."),
                (f"What does {an(n)} do?", f"{cap(an(n))} {does}."),
                (
                    f"Describe {an(n)}.",
                    f"{cap(an(n))} is {an(kind)}. Its colour is {col}. Its place is the {place}. It {does}.",
                ),
            ]
        )
        think = f"The user asks about {an(n)}. It is {an(kind)}, colour {col}, place {place}."
    elif k < 7:
        c = r.choice(list(CAPITALS))
        q, a = r.choice(
            [
                (f"What is the capital of {c}?", f"The capital of {c} is {CAPITALS[c]}."),
                (f"Name the capital of {c}.", f"The capital of {c} is {CAPITALS[c]}."),
                (f"Which country has the capital {CAPITALS[c]}?", f"{CAPITALS[c]} is the capital of {c}."),
            ]
        )
        think = f"This is about {c}. Its capital is {CAPITALS[c]}."
    elif k < 9:
        w = r.choice(list(OPPOSITES))
        q = r.choice([f"What is the opposite of {w}?", f"Give me the opposite of '{w}'."])
        a = f"The opposite of {w} is {OPPOSITES[w]}."
        think = f"I need the opposite of {w}. It is {OPPOSITES[w]}."
    elif k < 10:
        w = r.choice(list(COLOUR_FR))
        q, a = f"What is {w} in French?", f"In French, {w} is {COLOUR_FR[w]}."
        think = f"I translate {w} into French: {COLOUR_FR[w]}."
    elif k < 11:
        i = r.randrange(7)
        q, a = r.choice(
            [
                (f"Which day comes after {DAYS[i]}?", f"After {DAYS[i]} comes {DAYS[(i + 1) % 7]}."),
                (f"Which day comes before {DAYS[i]}?", f"Before {DAYS[i]} comes {DAYS[(i - 1) % 7]}."),
            ]
        )
        think = "I go through the days of the week in order."
    else:
        i = r.randrange(12)
        q, a = r.choice(
            [
                (f"Which month comes after {MONTHS[i]}?", f"After {MONTHS[i]} comes {MONTHS[(i + 1) % 12]}."),
                (
                    f"Which month comes before {MONTHS[i]}?",
                    f"Before {MONTHS[i]} comes {MONTHS[(i - 1) % 12]}.",
                ),
            ]
        )
        think = "I go through the months in order."
    return one(r, "fact", q, a, think, closed=True, p_think=0.25)


def add_steps(a, b):
    """Column addition, from the last digit."""
    out, carry, x, y = [], 0, a, b
    while x or y:
        s = x % 10 + y % 10 + carry
        out.append(f"{x % 10} + {y % 10}" + (" + 1" if carry else "") + f" = {s}")
        carry, x, y = s // 10, x // 10, y // 10
    return "; ".join(out) + f". So {a} + {b} = {a + b}."


def sub_steps(a, b):
    """Column subtraction (a >= b), from the last digit."""
    out, borrow, x, y = [], 0, a, b
    while x or y:
        u, v = x % 10 - borrow, y % 10
        borrow = int(u < v)
        u += 10 * borrow
        out.append(f"{u} - {v} = {u - v}")
        x, y = x // 10, y // 10
    return "; ".join(out) + f". So {a} - {b} = {a - b}."


def t_arith(r):
    k = r.randrange(10)
    if k < 4:
        hi = r.choice([10, 100, 100, 1000])
        a, b = r.randrange(hi), r.randrange(hi)
        ex, v, th = f"{a} + {b}", a + b, add_steps(a, b) if a + b else "0 + 0 = 0."
        words = [
            f"What is {ex}?",
            f"{ex} = ?",
            f"Calculate {ex}.",
            f"How much is {a} plus {b}?",
            f"Add {a} and {b}.",
        ]
    elif k < 7:
        hi = r.choice([10, 100, 100])
        a, b = sorted((r.randrange(hi), r.randrange(hi)), reverse=True)
        ex, v, th = f"{a} - {b}", a - b, sub_steps(a, b) if a else "0 - 0 = 0."
        words = [
            f"What is {ex}?",
            f"{ex} = ?",
            f"Calculate {ex}.",
            f"How much is {a} minus {b}?",
            f"Subtract {b} from {a}.",
        ]
    elif k < 9:
        a, b = r.randrange(13), r.randrange(13)
        ex, v, th = f"{a} * {b}", a * b, f"{a} times {b} is {a * b}."
        words = [
            f"What is {ex}?",
            f"{ex} = ?",
            f"Calculate {ex}.",
            f"How much is {a} times {b}?",
            f"Multiply {a} by {b}.",
        ]
    else:
        n, o, p = r.choice(NAMES), r.choice(["apples", "coins", "books", "eggs", "stones"]), r.randrange(2)
        a, b = r.randrange(2, 50), r.randrange(2, 50)
        if p:
            q = f"{n} has {a} {o} and gets {b} more. How many {o} does {n} have now?"
            v, th = a + b, f"I add the numbers. {add_steps(a, b)}"
        else:
            a, b = max(a, b), min(a, b)
            q = f"{n} has {a} {o} and gives away {b}. How many {o} does {n} have now?"
            v, th = a - b, f"I subtract the numbers. {sub_steps(a, b)}"
        return one(r, "arithmetic", q, f"{n} has {v} {o} now.", th)
    return one(r, "arithmetic", r.choice(words), f"{ex} = {v}", th)


def t_compare(r):
    k = r.randrange(3)
    if k == 0:
        a, b = r.sample(range(1000 if r.random() < 0.5 else 100), 2)
        big = r.random() < 0.5
        v = max(a, b) if big else min(a, b)
        return one(
            r,
            "compare",
            f"Which number is {'larger' if big else 'smaller'}, {a} or {b}?",
            f"{v} is {'larger' if big else 'smaller'}.",
            f"I compare {a} and {b}. {max(a, b)} is larger than {min(a, b)}.",
        )
    if k == 1:
        xs = r.sample(range(100), r.randrange(3, 7))
        return one(
            r,
            "sort",
            f"Sort these numbers: {', '.join(map(str, xs))}",
            ", ".join(map(str, sorted(xs))),
            f"The smallest number is {min(xs)} and the largest is {max(xs)}.",
        )
    xs = r.sample(NOUNS, r.randrange(3, 6))
    return one(
        r,
        "sort",
        f"Sort these words by the alphabet: {', '.join(xs)}",
        ", ".join(sorted(xs)),
        f"The first word is {min(xs)} and the last is {max(xs)}.",
    )


def rand_word(r, lo=2, hi=8):
    return "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randrange(lo, hi + 1)))


def rand_text(r, n):
    out = []
    for _ in range(n):
        k = r.random()
        out.append(
            r.choice(NOUNS)
            if k < 0.35
            else r.choice(ADJ)
            if k < 0.55
            else r.choice(VERBS)
            if k < 0.7
            else r.choice(NAMES)
            if k < 0.78
            else str(r.randrange(10 ** r.randrange(1, 5)))
            if k < 0.88
            else rand_word(r)
        )
    return " ".join(out)


def t_copy(r):
    k = r.randrange(7)
    n = r.choice([2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 40])
    if k < 4:
        s = rand_text(r, n)
        q = r.choice(["Repeat: ", "Repeat after me: ", "Copy this text: ", "Say exactly: ", "Echo: "]) + s
        return one(r, "copy", q, s, "I copy the text exactly.")
    if k == 4:
        s = "".join(r.choice("0123456789") for _ in range(r.randrange(3, 24)))
        return one(r, "copy", f"Repeat this number: {s}", s, "I copy the digits exactly.")
    if k == 5:
        w, n = r.choice(NOUNS), r.randrange(2, 13)
        return one(r, "copy", f"Write the word {w} {n} times.", " ".join([w] * n), f"I write {w} {n} times.")
    s = rand_text(r, min(n, 12))
    return one(
        r,
        "copy",
        r.choice([f"Put this text in quotes: {s}", f"Quote this: {s}"]),
        f'"{s}"',
        "I put quotes around the text.",
    )


def t_count(r):
    k = r.randrange(6)
    a = r.randrange(200 if r.random() < 0.6 else 20)
    n = r.choice([4, 6, 8, 10, 12, 16, 20, 24, 30, 40, 60, 80])
    if k < 3:
        b = a + n
        q = r.choice(
            [f"Count from {a} to {b}.", f"Count from {a} up to {b}.", f"List the numbers from {a} to {b}."]
        )
        return one(r, "count", q, ", ".join(map(str, range(a, b + 1))), f"I start at {a} and stop at {b}.")
    if k == 3:
        b = a + n
        return one(
            r,
            "count",
            f"Count down from {b} to {a}.",
            ", ".join(map(str, range(b, a - 1, -1))),
            f"I start at {b} and go down to {a}.",
        )
    if k == 4:
        s, a = r.choice([2, 3, 5, 10, 100]), r.randrange(10)
        n = min(n, 24)
        b = a + s * n
        return one(
            r,
            "count",
            f"Count from {a} to {b} in steps of {s}.",
            ", ".join(map(str, range(a, b + 1, s))),
            f"I add {s} each time until {b}.",
        )
    n = min(n, 30)
    b = a + n
    return one(
        r,
        "count",
        f"Count from {a} to {b}, one number per line.",
        "\n".join(map(str, range(a, b + 1))),
        f"I start at {a} and stop at {b}, with line breaks.",
    )


WORDS = sorted(set(NOUNS + ADJ + VERBS + PLACES))


def t_spell(r):
    w = r.choice(WORDS) if r.random() < 0.85 else rand_word(r, 3, 6)
    k = r.randrange(6)
    if k < 2:
        q = r.choice([f"Spell the word {w}.", f"Spell: {w}", f"How do you spell {w}?"])
        return one(r, "spell", q, "-".join(w), f"I write the letters of {w} one by one.")
    if k < 4:
        q = r.choice([f"Reverse the word {w}.", f"Write {w} backwards."])
        return one(
            r, "reverse", q, w[::-1], f"The letters are {'-'.join(w)}. Backwards: {'-'.join(w[::-1])}."
        )
    if k == 4:
        return one(
            r,
            "spell",
            f"How many letters does the word {w} have?",
            f"The word {w} has {len(w)} letters.",
            f"The letters are {'-'.join(w)}.",
        )
    f = r.random() < 0.5
    return one(
        r,
        "spell",
        f"What is the {'first' if f else 'last'} letter of {w}?",
        f"The {'first' if f else 'last'} letter of {w} is {w[0] if f else w[-1]}.",
        f"The letters are {'-'.join(w)}.",
    )


def t_case(r):
    n = r.randrange(2, 6)
    ws = [r.choice(WORDS) for _ in range(n)]
    k = r.randrange(3)
    if k == 0:
        return one(
            r,
            "case",
            f"Write in capital letters: {' '.join(ws)}",
            " ".join(ws).upper(),
            "I change every letter to upper case.",
        )
    if k == 1:
        return one(
            r,
            "case",
            f"Reverse the order of these words: {' '.join(ws)}",
            " ".join(ws[::-1]),
            "I start with the last word.",
        )
    i = r.randrange(n)
    o = ["first", "second", "third", "fourth", "fifth"][i]
    return one(
        r,
        "case",
        f"What is the {o} word here? {' '.join(ws)}",
        f"The {o} word is {ws[i]}.",
        f"I look at word number {i + 1}.",
    )


FIELDS = {
    "name": lambda r: r.choice(NAMES),
    "age": lambda r: r.randrange(1, 100),
    "city": lambda r: r.choice(CITIES),
    "colour": lambda r: r.choice(list(COLOUR_FR)),
    "animal": lambda r: r.choice([n for n in NOUNS[:60] if THINGS[n][0] == "animal"] or NOUNS),
    "price": lambda r: round(r.randrange(1, 1000) / 10, 1),
    "count": lambda r: r.randrange(500),
    "open": lambda r: r.random() < 0.5,
    "item": lambda r: r.choice(NOUNS),
    "place": lambda r: r.choice(PLACES),
    "day": lambda r: r.choice(DAYS),
    "month": lambda r: r.choice(MONTHS),
    "friend": lambda r: r.choice(NAMES),
    "mood": lambda r: r.choice(ADJ),
    "code": lambda r: r.randrange(1000, 10000),
    "active": lambda r: r.random() < 0.5,
    "country": lambda r: r.choice(list(CAPITALS)),
}


def say(v):
    return ("true" if v else "false") if isinstance(v, bool) else str(v)


def t_json(r):
    k = r.randrange(6)
    if k < 3:
        keys = r.sample(list(FIELDS), r.randrange(1, 6))
        obj = {x: FIELDS[x](r) for x in keys}
        desc = join_and([f"{x} is {say(v)}" for x, v in obj.items()])
        q = r.choice(
            [
                f"Write a JSON object: {desc}.",
                f"Make JSON: {desc}.",
                f"Turn this into JSON: {desc}.",
                f"Answer as JSON: {desc}.",
            ]
        )
    elif k == 3:
        xs = (
            r.sample(NOUNS, r.randrange(2, 8))
            if r.random() < 0.6
            else [r.randrange(100) for _ in range(r.randrange(2, 8))]
        )
        obj = xs
        q = r.choice(
            ["Write this list as a JSON array: ", "JSON array of: ", "Turn this list into JSON: "]
        ) + ", ".join(map(str, xs))
    elif k == 4:
        ps = [(r.choice(NAMES), r.randrange(1, 100)) for _ in range(r.randrange(2, 5))]
        obj = [{"name": n, "age": a} for n, a in ps]
        q = "Write a JSON array of people: " + "; ".join(f"{n}, {a} years" for n, a in ps)
    else:
        n = r.choice(NOUNS)
        kind, col, place, _ = THINGS[n]
        obj = {"name": n, "kind": kind, "colour": col, "place": place}
        q = f"Describe {an(n)} as a JSON object with name, kind, colour and place."
    return one(r, "json", q, json.dumps(obj), "I write valid JSON with the given values.", p_think=0.25)


def t_extract(r):
    n, a, c, j = (
        r.choice(NAMES),
        r.randrange(5, 90),
        r.choice(CITIES),
        r.choice(["teacher", "doctor", "cook", "pilot", "farmer", "painter", "baker", "singer"]),
    )
    text = r.choice(
        [
            f"{n} is {a} years old and lives in {c}. {n} works as a {j}.",
            f"In {c} lives a {j} called {n}, who is {a} years old.",
            f"The {j} {n} comes from {c} and is {a}.",
        ]
    )
    if r.random() < 0.5:
        keys = r.sample(["name", "age", "city", "job"], r.randrange(2, 5))
        obj = {x: {"name": n, "age": a, "city": c, "job": j}[x] for x in keys}
        return one(
            r,
            "extract",
            f"{text} Give me {join_and(keys)} as JSON.",
            json.dumps(obj),
            "I find the values in the text and write JSON.",
            p_think=0.25,
        )
    q, ans = r.choice(
        [
            ("How old is this person?", f"{n} is {a} years old."),
            ("Where does this person live?", f"{n} lives in {c}."),
            ("What is the job of this person?", f"{n} is a {j}."),
            ("What is the name of this person?", f"The name is {n}."),
        ]
    )
    return one(r, "extract", f"{text} {q}", ans, "The answer is in the text.", p_think=0.25)
