"""Stories, code, chats of several turns, and a value to be found in a long text."""

from __future__ import annotations

from lexicon import ADJ, CITIES, COLOUR_FR, DAYS, KIND_PLURAL, KINDS, NAMES, NOUNS, PLACES, THINGS, VERBS
from samples import FORCE_THINK, A, Sample, U, an, cap, join_and, one
from tasks_text import (
    add_steps,
    sub_steps,
    t_arith,
    t_case,
    t_compare,
    t_copy,
    t_count,
    t_extract,
    t_fact,
    t_json,
    t_spell,
    t_talk,
)

STORIES = {
    "short": "Once there was {a1} {x}. It lived in the {p} with {a2} {y}. One day the {x} lost the {y}. It "
    "looked in the {p} all night. In the morning the {y} came back, and the {x} was happy.",
    "happy": "The {x} woke up early and found {a2} {y} in the {p}. They played all day. The {y} laughed and "
    "the {x} danced. In the evening they shared a warm soup. It was the best day of the year.",
    "sad": "The {x} waited in the {p} for the {y}. The rain fell and the wind was cold. Nobody came. At "
    "night the {x} wrote a letter to the {y} and went home alone.",
    "funny": "The {x} wanted to teach the {y} to dance in the {p}. First the {y} fell into a bucket. Then "
    "the {x} fell into the soup. Everybody laughed, and the {y} laughed the loudest.",
    "scary": "It was dark in the {p}. The {x} heard a noise. Something moved behind the wall. The {x} held "
    "its breath and lit a candle. It was only the {y}, and it was scared too.",
    "long": "Long ago {a1} {x} and {a2} {y} lived near the {p}. Every morning the {x} walked to the {p} to "
    "fetch water. Every evening the {y} lit a lantern. One winter the snow closed the road. The {x} was "
    "hungry and the {y} was cold. So they shared the last bread and told old tales. When spring came, the "
    "road was open again. The {x} planted a tree beside the {p}, and the {y} gave it a name. People still "
    "rest under that tree today.",
}


def t_story(r):
    style = r.choice(list(STORIES))
    x, y = r.sample(NOUNS, 2)
    p = r.choice(PLACES)
    q = r.choice(
        [
            f"Tell me a {style} story about {an(x)} and {an(y)} in the {p}.",
            f"Write a {style} story: {x}, {y}, {p}.",
        ]
    )
    return one(
        r,
        "story",
        q,
        STORIES[style].format(x=x, y=y, p=p, a1=an(x).split()[0], a2=an(y).split()[0]),
        f"I write a {style} story about {an(x)} and {an(y)}. The place is the {p}.",
        p_think=0.25,
    )


def t_code(r):
    n = r.choice([n for n in NOUNS if " " not in n])
    m = r.randrange(2, 100)
    k = r.randrange(6)
    q, body = [
        (f"Write a Python function {n} that adds two numbers.", f"def {n}(a, b):\n    return a + b"),
        (f"Write a Python function {n} that multiplies two numbers.", f"def {n}(a, b):\n    return a * b"),
        (f"Write a Python function {n} that adds {m} to a number.", f"def {n}(x):\n    return x + {m}"),
        (f"Write a Python loop that prints {n} {m} times.", f'for i in range({m}):\n    print("{n}")'),
        (
            f"Write a Python function {n} that returns the length of a list.",
            f"def {n}(items):\n    return len(items)",
        ),
        (
            f"Write a Python function {n} that greets a person.",
            f'def {n}(name):\n    return "Hello, " + name',
        ),
    ][k]
    return one(r, "code", q, f"```python\n{body}\n```", "I write a short piece of Python code.", p_think=0.2)


def t_list(r):
    k = r.randrange(3)
    if k == 0:
        kind = r.choice([x for x in KINDS if sum(THINGS[n][0] == x for n in NOUNS) >= 3])
        return one(
            r,
            "list",
            f"Name three {KIND_PLURAL[kind]}.",
            cap(join_and([n for n in NOUNS if THINGS[n][0] == kind][:3])) + ".",
            closed=True,
        )
    xs = r.sample(NOUNS, r.randrange(2, 8))
    if k == 1:
        return one(
            r,
            "list",
            f"Make a numbered list: {', '.join(xs)}",
            "\n".join(f"{i + 1}. {x}" for i, x in enumerate(xs)),
            "I put each item on its own line with a number.",
            p_think=0.2,
        )
    return one(
        r,
        "list",
        f"Make a bullet list: {', '.join(xs)}",
        "\n".join(f"- {x}" for x in xs),
        "I put each item on its own line.",
        p_think=0.2,
    )


def t_multi(r):
    n = r.choice(NAMES)
    x, col = r.choice(NOUNS), r.choice(list(COLOUR_FR))
    city, num = r.choice(CITIES), r.randrange(2, 100)
    friend = r.choice([m for m in NAMES if m != n])
    pool = [
        (f"My name is {n}.", f"Nice to meet you, {n}.", "What is my name?", f"Your name is {n}."),
        (
            f"I have a {col} {x}.",
            f"A {col} {x}, how nice.",
            r.choice([f"What colour is my {x}?"]),
            f"Your {x} is {col}.",
        ),
        (f"I live in {city}.", f"{city} is a nice city.", "Where do I live?", f"You live in {city}."),
        (
            f"My lucky number is {num}.",
            f"I will remember {num}.",
            "What is my lucky number?",
            f"Your lucky number is {num}.",
        ),
        (
            f"My best friend is {friend}.",
            f"{friend} sounds like a good friend.",
            "Who is my best friend?",
            f"Your best friend is {friend}.",
        ),
    ]
    r.shuffle(pool)
    msgs = []
    think = r.random() < 0.35
    keep = think and r.random() < 0.5  # the client sent the earlier reasoning back
    use = pool[: r.randrange(1, 5)]
    for a, b, _, _ in use:
        msgs += [U(a), A(b, "The user tells me something." if keep else None)]
        if r.random() < 0.25:
            FORCE_THINK[0] = keep
            msgs += r.choice(SIMPLE)(r).messages[-2:]
            FORCE_THINK[0] = None
    k = r.random()
    if k < 0.15:
        last = msgs[-1]["content"]
        q, a = r.choice(["Say that again.", "Repeat your last answer."]), last
    elif k < 0.25:
        q, a = "What was my first message?", f"Your first message was: {msgs[0]['content']}"
    else:
        f = r.choice(use)
        q, a = f[2], f[3]
        if r.random() < 0.4:
            msgs += [U(q), A(a, "I look back at our talk." if keep else None)]
            f = r.choice(use)
            q, a = f[2], f[3]
    return Sample("multi", [*msgs, U(q), A(a, "I look back at our talk." if think else None)], thinking=think)


def t_followup(r):
    a, b = r.randrange(2, 60), r.randrange(2, 60)
    msgs = [U(f"What is {a} + {b}?"), A(f"{a} + {b} = {a + b}")]
    c = r.randrange(2, 40)
    think = r.random() < 0.35
    if think and r.random() < 0.5:
        msgs[-1]["reasoning_content"] = add_steps(a, b)
    if r.random() < 0.5 or a + b < c:
        msgs += [
            U(f"Now add {c}."),
            A(f"{a + b} + {c} = {a + b + c}", add_steps(a + b, c) if think else None),
        ]
    else:
        msgs += [
            U(f"Now subtract {c}."),
            A(f"{a + b} - {c} = {a + b - c}", sub_steps(a + b, c) if think else None),
        ]
    return Sample("followup", msgs, thinking=think)


SIMPLE = [
    t_talk,
    t_fact,
    t_arith,
    t_compare,
    t_copy,
    t_count,
    t_spell,
    t_case,
    t_json,
    t_extract,
    t_code,
    t_list,
]


def t_dialog(r, turns=None):
    """Several independent requests in one chat (fills the context; every turn is scored in training)."""
    msgs = []
    FORCE_THINK[0] = r.random() < 0.35
    for _ in range(turns or r.randrange(2, 7)):
        s = r.choice([*SIMPLE, t_story])(r)
        msgs += s.messages[-2:]
    thinking = FORCE_THINK[0]
    FORCE_THINK[0] = None
    if thinking and "reasoning_content" not in msgs[-1]:
        msgs[-1]["reasoning_content"] = "I answer directly."
    return Sample("dialog", msgs, thinking=thinking)


def filler(r):
    k = r.randrange(5)
    if k == 0:
        return f"The {r.choice(ADJ)} {r.choice(NOUNS)} {r.choice(VERBS)} near the {r.choice(PLACES)}."
    if k == 1:
        return f"{r.choice(NAMES)} {r.choice(VERBS)} to the {r.choice(PLACES)} with {an(r.choice(NOUNS))}."
    if k == 2:
        return f"In the {r.choice(PLACES)} there is {an(r.choice(ADJ))} {r.choice(NOUNS)}."
    if k == 3:
        return f"{cap(an(r.choice(NOUNS)))} and {an(r.choice(NOUNS))} are in the {r.choice(PLACES)}."
    return f"On {r.choice(DAYS)} {r.choice(NAMES)} {r.choice(VERBS)} alone."


def t_needle(r, words=None):
    """Key-value facts hidden in filler; `words` is the rough length of the text in words."""
    words = words or int(40 * (75 ** r.random()))
    n = min(r.randrange(1, 9), max(1, words // 20))
    kind = r.randrange(3)
    if kind == 0:
        keys = r.sample(NOUNS, n)
        vals = [str(r.randrange(1000, 10000)) for _ in keys]
        fact, ask, ans = (
            "The code of the {k} is {v}.",
            "What is the code of the {k}?",
            "The code of the {k} is {v}.",
        )
    elif kind == 1:
        keys = r.sample(NAMES, n)
        vals = [r.choice(NOUNS) for _ in keys]
        fact, ask, ans = (
            "The secret word of {k} is {v}.",
            "What is the secret word of {k}?",
            "The secret word of {k} is {v}.",
        )
    else:
        keys = r.sample(CITIES, n)
        vals = [r.choice(NAMES) for _ in keys]
        fact, ask, ans = (
            "The mayor of {k} is called {v}.",
            "Who is the mayor of {k}?",
            "The mayor of {k} is called {v}.",
        )
    sents, count = [], 0
    while count < words:
        s = filler(r)
        sents.append(s)
        count += s.count(" ") + 1
    for k, v in zip(keys, vals, strict=False):
        sents.insert(r.randrange(len(sents) + 1), fact.format(k=k, v=v))
    i = r.randrange(n)
    text = " ".join(sents)
    q = ask.format(k=keys[i])
    prompt = r.choice([f"{text}\n\n{q}", f"Read this text.\n{text}\n\n{q}", f"{q}\n\n{text}\n\n{q}"])
    think = r.random() < 0.2
    return Sample(
        "needle",
        [
            U(prompt),
            A(ans.format(k=keys[i], v=vals[i]), f"I look for {keys[i]} in the text." if think else None),
        ],
        thinking=think,
    )


def t_needle_chat(r, words=None):
    """As t_needle, but several questions follow one another (dense in scored tokens)."""
    words = words or int(60 * (50 ** r.random()))
    n = max(2, min(10, words // 25))
    keys = r.sample(NOUNS, n)
    vals = [str(r.randrange(1000, 10000)) for _ in keys]
    sents, count = [], 0
    while count < words:
        s = filler(r)
        sents.append(s)
        count += s.count(" ") + 1
    for k, v in zip(keys, vals, strict=False):
        sents.insert(r.randrange(len(sents) + 1), f"The code of the {k} is {v}.")
    order = r.sample(range(n), r.randrange(2, n + 1))
    msgs = []
    think = r.random() < 0.25
    for j, i in enumerate(order):
        q = f"What is the code of the {keys[i]}?"
        msgs += [
            U(" ".join(sents) + "\n\n" + q if j == 0 else q),
            A(
                f"The code of the {keys[i]} is {vals[i]}.",
                f"I look for {keys[i]} in the text." if think else None,
            ),
        ]
    return Sample("needle_chat", msgs, thinking=think)
