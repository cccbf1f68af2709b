"""Tasks with pictures and videos."""

from __future__ import annotations

import json

from lexicon import COLOURS, GROUNDS, SHAPES
from samples import FORCE_THINK, A, Sample, U, an, cap
from tasks_text import t_arith, t_fact, t_talk


def pic(r, shape=None, colour=None, ground=None, **kw):
    c = colour or r.choice(list(COLOURS))
    g = ground or r.choice([x for x in GROUNDS if x != c])
    return dict(shape=shape or r.choice(SHAPES), colour=c, ground=g, seed=r.randrange(1 << 30), **kw)


def IMG(*parts):
    return {
        "role": "user",
        "content": [({"type": p} if p in ("image", "video") else {"type": "text", "text": p}) for p in parts],
    }


def t_image(r):
    k = r.randrange(14)
    p = pic(r)
    c, s, g = p["colour"], p["shape"], p["ground"]
    media = [dict(kind="image", frames=[p])]
    th = "I look at the picture."
    if k < 2:
        parts, a = (
            [
                "image",
                r.choice(["What colour is the shape?", "Which colour do you see?", "What colour is it?"]),
            ],
            f"The shape is {c}.",
        )
    elif k < 4:
        parts, a = (
            ["image", r.choice(["What shape is it?", "Which shape do you see?", "What shape is this?"])],
            f"It is {an(s)}.",
        )
    elif k < 6:
        parts, a = (
            ["image", r.choice(["Describe the image.", "What is in the image?", "What do you see?"])],
            f"{cap(an(c))} {s} on {an(g)} ground.",
        )
        th = f"I see {an(c)} {s}."
    elif k == 6:
        parts, a = (
            ["image", r.choice(["What colour is the ground?", "What is the background colour?"])],
            f"The ground is {g}.",
        )
    elif k == 7:
        parts, a = (
            ["image", "Describe the image as JSON with colour and shape."],
            json.dumps({"colour": c, "shape": s}),
        )
    elif k == 8:
        ask = r.choice([c, r.choice(list(COLOURS))])
        parts, a = ["image", f"Is the shape {ask}?"], "Yes." if ask == c else f"No, it is {c}."
    elif k == 9:
        ask = r.choice([s, r.choice(SHAPES)])
        parts, a = ["image", f"Is it {an(ask)}?"], "Yes." if ask == s else f"No, it is {an(s)}."
    elif k == 10:
        d = r.randrange(10)
        media[0]["frames"][0] = dict(p, shape="digit", digit=d)
        parts, a = (
            ["image", r.choice(["Which digit is shown?", "What digit do you see?", "Read the digit."])],
            f"It is the digit {d}.",
        )
    elif k == 11:
        side = r.choice(["left", "right"])
        media[0]["frames"][0] = dict(p, side=side)
        parts, a = ["image", "Is the shape on the left or on the right?"], f"The shape is on the {side}."
    else:
        [x for x in GROUNDS]
        p2 = pic(
            r, colour=r.choice([x for x in COLOURS if x != c]), shape=r.choice([x for x in SHAPES if x != s])
        )
        media.append(dict(kind="image", frames=[p2]))
        i = r.randrange(2)
        q = [p, p2][i]
        o = ["first", "second"][i]
        parts, a = r.choice(
            [
                (["image", "image", f"Which image is {q['colour']}?"], f"The {o} image is {q['colour']}."),
                (
                    ["image", "image", f"Which image shows {an(q['shape'])}?"],
                    f"The {o} image shows {an(q['shape'])}.",
                ),
                (
                    ["image", "image", f"What is in the {o} image?"],
                    f"{cap(an(q['colour']))} {q['shape']} on {an(q['ground'])} ground.",
                ),
            ]
        )
    if r.random() < 0.15 and parts[0] == "image" and len(media) == 1:
        parts = [parts[1], "image"]
    think = r.random() < 0.2
    return Sample("image", [IMG(*parts), A(a, th if think else None)], thinking=think, media=media)


def ask_picture(r, p):
    """(question, answer) about one picture."""
    c, s, g = p["colour"], p["shape"], p["ground"]
    k = r.randrange(7)
    if k == 5:
        ask = r.choice([c, r.choice(list(COLOURS))])
        return f"Is the shape {ask}?", "Yes." if ask == c else f"No, it is {c}."
    if k == 6:
        ask = r.choice([s, r.choice(SHAPES)])
        return f"Is it {an(ask)}?", "Yes." if ask == s else f"No, it is {an(s)}."
    return [
        (
            r.choice(["What colour is the shape?", "Which colour do you see?", "What colour is it?"]),
            f"The shape is {c}.",
        ),
        (
            r.choice(["What shape is it?", "Which shape do you see?", "What shape is this?"]),
            f"It is {an(s)}.",
        ),
        (
            r.choice(["Describe the image.", "What is in the image?", "What do you see?"]),
            f"{cap(an(c))} {s} on {an(g)} ground.",
        ),
        (r.choice(["What colour is the ground?", "What is the background colour?"]), f"The ground is {g}."),
        ("Describe the image as JSON with colour and shape.", json.dumps({"colour": c, "shape": s})),
    ][k]


def t_image_chat(r):
    """Several questions about one picture, sometimes after or before a question without one."""
    p = pic(r)
    msgs = []
    think = r.random() < 0.3

    def other():
        FORCE_THINK[0] = think
        m = r.choice([t_talk, t_fact, t_arith])(r).messages[-2:]
        FORCE_THINK[0] = None
        return m

    if r.random() < 0.25:
        msgs += other()
    for i in range(r.randrange(1, 4)):
        q, a = ask_picture(r, p)
        msgs += [IMG("image", q) if i == 0 else U(q), A(a, "I look at the picture." if think else None)]
        if r.random() < 0.15:
            msgs += other()
    return Sample("image_chat", msgs, thinking=think, media=[dict(kind="image", frames=[p])])


def t_video(r):
    a, b = pic(r), None
    b = pic(
        r,
        colour=r.choice([x for x in COLOURS if x not in (a["colour"], a["ground"])]),
        shape=r.choice([x for x in SHAPES if x != a["shape"]]),
        ground=a["ground"],
    )
    k = r.randrange(4)
    n = r.choice([2, 4, 4])
    if k < 3:
        frames = [a] * (n // 2) + [b] * (n // 2)
        da, db = f"{an(a['colour'])} {a['shape']}", f"{an(b['colour'])} {b['shape']}"
        q, ans = r.choice(
            [
                ("What comes first?", f"First comes {da}."),
                ("What comes second?", f"Second comes {db}."),
                ("What comes last?", f"Last comes {db}."),
                ("Describe the video.", f"First {da}, then {db}."),
                ("What happens in the video?", f"First {da}, then {db}."),
            ]
        )
    else:
        side = r.choice(["left", "right"])
        frames = [dict(a, side="left"), dict(a, side="right")]
        frames = [f for f in (frames if side == "right" else frames[::-1]) for _ in range(n // 2)]
        q, ans = "Where does the shape move?", f"The shape moves to the {side}."
    think = r.random() < 0.25
    return Sample(
        "video",
        [IMG("video", q), A(ans, "I look at the frames." if think else None)],
        thinking=think,
        media=[dict(kind="video", frames=frames, fps=r.choice([1, 2, 2, 4]))],
    )
