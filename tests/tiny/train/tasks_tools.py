"""Tasks with tools: calls to known and made-up functions, and replies to their results."""

from __future__ import annotations

import json

from lexicon import ADJ, CITIES, COLOURS, DAYS, NAMES, NOUNS, PLACES
from samples import A, Sample, U, cap, join_and
from tasks_text import rand_text, t_arith, t_fact, t_talk


def P(**kw):
    return {k: ({"type": v} if isinstance(v, str) else v) for k, v in kw.items()}


TOOLBOX = {
    "get_weather": (
        "Get the weather of a city",
        P(city="string"),
        lambda r: {"city": r.choice(CITIES)},
        ["What is the weather in {city}?", "How is the weather in {city}?", "Weather in {city}, please."],
        lambda r, a: {
            "city": a["city"],
            "temperature": r.randrange(-10, 36),
            "sky": r.choice(["sunny", "cloudy", "rainy", "windy"]),
        },
        lambda a, o: f"It is {o['sky']} in {a['city']} and {o['temperature']} degrees.",
    ),
    "get_time": (
        "Get the time in a city",
        P(city="string"),
        lambda r: {"city": r.choice(CITIES)},
        ["What time is it in {city}?", "Tell me the time in {city}."],
        lambda r, a: {"time": f"{r.randrange(24):02d}:{r.randrange(60):02d}"},
        lambda a, o: f"It is {o['time']} in {a['city']}.",
    ),
    "add": (
        "Add two numbers",
        P(a="integer", b="integer"),
        lambda r: {"a": r.randrange(10000), "b": r.randrange(10000)},
        ["Use the tool to add {a} and {b}.", "Add {a} and {b} with the tool."],
        lambda r, a: {"result": a["a"] + a["b"]},
        lambda a, o: f"The sum is {o['result']}.",
    ),
    "multiply": (
        "Multiply two numbers",
        P(a="integer", b="integer"),
        lambda r: {"a": r.randrange(1000), "b": r.randrange(1000)},
        ["Use the tool to multiply {a} by {b}.", "Multiply {a} and {b} with the tool."],
        lambda r, a: {"result": a["a"] * a["b"]},
        lambda a, o: f"The product is {o['result']}.",
    ),
    "send_mail": (
        "Send a mail to a person",
        P(to="string", subject="string"),
        lambda r: {"to": r.choice(NAMES), "subject": f"{r.choice(ADJ)} {r.choice(NOUNS)}"},
        ["Send a mail to {to} with the subject {subject}.", "Mail {to} about {subject}."],
        lambda r, a: {"status": "sent"},
        lambda a, o: f"The mail to {a['to']} was {o['status']}.",
    ),
    "search": (
        "Search the web",
        P(query="string"),
        lambda r: {"query": f"{r.choice(ADJ)} {r.choice(NOUNS)}"},
        ["Search for {query}.", "Search the web for {query}.", "Look up {query} on the web."],
        lambda r, a: {"hits": r.randrange(500)},
        lambda a, o: f"I found {o['hits']} hits for {a['query']}.",
    ),
    "get_price": (
        "Get the price of an item",
        P(item="string"),
        lambda r: {"item": r.choice(NOUNS)},
        ["What is the price of the {item}?", "How much does the {item} cost?"],
        lambda r, a: {"price": r.randrange(1, 900)},
        lambda a, o: f"The {a['item']} costs {o['price']} coins.",
    ),
    "set_light": (
        "Switch the light of a room",
        P(room="string", on="boolean"),
        lambda r: {
            "room": r.choice(["kitchen", "bedroom", "hall", "cellar", "attic", "study"]),
            "on": r.random() < 0.5,
        },
        ["Turn {onoff} the light in the {room}.", "Switch {onoff} the {room} light."],
        lambda r, a: {"status": "done"},
        lambda a, o: f"The light in the {a['room']} is {'on' if a['on'] else 'off'} now.",
    ),
    "set_timer": (
        "Start a timer",
        P(minutes="integer"),
        lambda r: {"minutes": r.randrange(1, 120)},
        ["Set a timer for {minutes} minutes.", "Start a timer of {minutes} minutes."],
        lambda r, a: {"status": "started"},
        lambda a, o: f"The timer for {a['minutes']} minutes has {o['status']}.",
    ),
    "find_person": (
        "Find the city of a person",
        P(name="string"),
        lambda r: {"name": r.choice(NAMES)},
        ["Where is {name}?", "Find {name}.", "In which city is {name}?"],
        lambda r, a: {"city": r.choice(CITIES)},
        lambda a, o: f"{a['name']} is in {o['city']}.",
    ),
    "read_file": (
        "Read a file",
        P(path="string"),
        lambda r: {"path": f"{r.choice(NOUNS)}.txt"},
        ["Read the file {path}.", "Open {path}.", "What is in {path}?"],
        lambda r, a: {"text": rand_text(r, 3)},
        lambda a, o: f"The file {a['path']} says: {o['text']}",
    ),
    "book_table": (
        "Book a table",
        P(place="string", people="integer", day="string"),
        lambda r: {"place": r.choice(CITIES), "people": r.randrange(1, 13), "day": r.choice(DAYS)},
        [
            "Book a table in {place} for {people} people on {day}.",
            "Reserve a table for {people} in {place} on {day}.",
        ],
        lambda r, a: {"number": r.randrange(1, 60)},
        lambda a, o: f"I booked table {o['number']} in {a['place']} for {a['day']}.",
    ),
}
T_NOUN = [
    "door",
    "garden",
    "robot",
    "train",
    "music",
    "camera",
    "ticket",
    "order",
    "note",
    "alarm",
    "pump",
    "engine",
    "window",
    "file",
    "room",
]
T_VERB = ["open", "close", "start", "stop", "check", "move", "print", "clean", "count", "delete"]


def made_up_tool(r):
    """A tool that the toolbox does not have: the name, the parameters and the request are drawn."""
    v, n = r.choice(T_VERB), r.choice(T_NOUN)
    pool = {
        "number": ("integer", lambda: r.randrange(100)),
        "name": ("string", lambda: r.choice(NAMES)),
        "place": ("string", lambda: r.choice(PLACES)),
        "colour": ("string", lambda: r.choice(list(COLOURS))),
        "code": ("integer", lambda: r.randrange(1000, 10000)),
        "day": ("string", lambda: r.choice(DAYS)),
    }
    ks = r.sample(list(pool), r.randrange(1, 4))
    args = {k: pool[k][1]() for k in ks}
    q = f"{cap(v)} the {n} with " + join_and([f"{k} {x}" for k, x in args.items()]) + "."
    return f"{v}_{n}", (f"{cap(v)} the {n}", P(**{k: pool[k][0] for k in ks}), args, q)


def schema(name, desc, params):
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": desc,
            "parameters": {"type": "object", "properties": params, "required": list(params)},
        },
    }


def t_tool(r):
    others = r.sample(list(TOOLBOX), r.randrange(0, 3))
    kind = r.randrange(10)
    if kind < 3:
        name, (desc, params, args, q) = made_up_tool(r)
        tools = [schema(name, desc, params)]
        out = {"status": "ok"}
        final = f"Done. The tool {name} says ok."
    else:
        name = r.choice(list(TOOLBOX))
        desc, params, draw, asks, answer, final_f = TOOLBOX[name]
        args = draw(r)
        q = r.choice(asks).format(**args, onoff="on" if args.get("on") else "off")
        tools = [schema(name, desc, params)]
        out = answer(r, args)
        final = final_f(args, out)
    tools += [schema(o, TOOLBOX[o][0], TOOLBOX[o][1]) for o in others if o != name]
    r.shuffle(tools)
    think = r.random() < 0.3
    if kind == 9:  # no tool fits
        base = r.choice([t_fact, t_arith, t_talk])(r)
        tools = [t for t in tools if t["function"]["name"] not in ("add", "multiply")] or [
            schema("send_mail", *TOOLBOX["send_mail"][:2])
        ]
        base.messages[-1].pop("reasoning_content", None)
        msgs = base.messages
        if think:
            msgs[-1]["reasoning_content"] = "No tool is needed here. I answer directly."
        return Sample("tool_none", msgs, tools=tools, thinking=think)
    call = A("", f"I need the tool {name} for this." if think else None, [(name, args)])
    if r.random() < 0.55:
        return Sample("tool_call", [U(q), call], tools=tools, thinking=think)
    if think:
        call["reasoning_content"] = f"I need the tool {name} for this."
    last = A(final, "The tool has answered. I tell the user the result." if think else None)
    return Sample(
        "tool_reply",
        [U(q), call, {"role": "tool", "content": json.dumps(out)}, last],
        tools=tools,
        thinking=think,
    )
