"""Stories from a grammar with slots.

A `Tale` holds the slots: who, with whom, with what, where, why. `Tale.draw` fills the slots that a prompt leaves open,
`prompt` phrases a wish that names some of them, `tell` writes the story, `follow_up` asks about it afterwards.
A plot is a list of beats, a beat a list of phrasings; one phrasing of every beat is drawn.
"""

import random
from dataclasses import dataclass, field

from words import (CHARACTERS, ENDINGS, HE, LESSONS, NATURES, OBJECTS, PLACES, PLAIN_OBJECT, PLAIN_SPOTS, SHE, SYLLABLES, TIMES, WEATHER)

PLAIN_PLACES = ["in a kitchen", "in a museum", "in a zoo", "in the attic", "at the market", "in a train station", "in a tower", "on a cloud", "in a bakery", "on a hill", "in a wooden hut", "at the north pole", "in a circus", "on a train", "in Paris", "in London", "in Rome", "in Africa", "in a tree house", "in a tunnel"]
EXTRA_CHARACTERS = "chicken hamster raccoon moose hippo rhino cheetah leopard flamingo peacock worm beetle moth shark jellyfish starfish toad newt goblin elf mermaid witch clown doctor teacher tailor painter child alien monster troll gardener musician scientist detective lobster walrus llama sloth puppy kitten lamb chick bunny pigeon raven seagull stork".split()
EXTRA_OBJECTS = "sandwich computer phone guitar piano trumpet carrot cookie pizza cheese hammer shovel bottle pencil shoe sock necklace bracelet diamond crystal potion spell rocket car ship bridge door window table carpet broom treasure song secret puzzle doll toy statue leaf mushroom strawberry banana lemon nut cup bowl bag backpack flag tent lamp torch shield helmet watch camera radio stick branch pebble cloud rainbow snowball icicle bone cushion ribbon thread needle nail anchor barrel lute harp cupcake pancake donut".split()
EXTRA_ADJECTIVES = "red blue green golden silver black white purple orange pink shiny broken magic lost tiny huge strange old new wooden heavy glowing beautiful secret".split()
FEELINGS = ["happy", "funny", "sad", "cozy", "exciting", "magical", "sweet", "nice", "good"]


def article(noun):
    return ("an " if noun[0].lower() in "aeio" or noun.startswith(("umb", "ugl", "unk")) else "a ") + noun


def invented(rng):
    """A word that does not exist, so that the model learns to copy instead of recalling."""
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 2))) + rng.choice(ENDINGS)


@dataclass
class Tale:
    who: str
    adjective: str
    name: str
    female: bool
    friend: str
    friend_adjective: str
    friend_name: str
    thing: str
    thing_adjective: str
    place: str
    theme: str
    weather: str
    style: str = ""
    asked: frozenset = field(default_factory=frozenset)

    @staticmethod
    def draw(rng):
        def being():
            r = rng.random()
            return rng.choice(list(CHARACTERS)) if r < 0.78 else rng.choice(EXTRA_CHARACTERS) if r < 0.92 else invented(rng)

        def called():
            if rng.random() < 0.15:
                made = invented(rng).capitalize()
                return made + rng.choice(["", "a", "o", "i"])
            return rng.choice(SHE + HE)

        who = being()
        friend = who
        while friend == who:
            friend = being()
        name = called()
        friend_name = name
        while friend_name == name:
            friend_name = called()
        r = rng.random()
        thing = rng.choice(list(OBJECTS)) if r < 0.74 else rng.choice(EXTRA_OBJECTS) if r < 0.91 else invented(rng)
        known = OBJECTS[thing][0].split() if thing in OBJECTS else EXTRA_ADJECTIVES
        r = rng.random()
        place = rng.choice(list(PLACES)) if r < 0.85 else rng.choice(PLAIN_PLACES)
        if who in ("queen", "princess", "hen", "cow", "girl", "fairy", "mermaid", "witch"):
            female = True
        elif who in ("king", "prince", "boy", "wizard"):
            female = False
        elif name in SHE or name in HE:
            female = name in SHE
        else:
            female = name[-1] in "aeiy"
        return Tale(who, rng.choice(NATURES), name, female, friend, rng.choice(NATURES), friend_name, thing,
                    rng.choice(known if rng.random() < 0.8 else EXTRA_ADJECTIVES), place, rng.choice(list(LESSONS)), rng.choice(list(WEATHER)))

    def settle(self, rng):
        """Makes the slots that the prompt left open common ones: only the user brings strange words."""
        if "friend" not in self.asked and self.friend not in CHARACTERS:
            self.friend = rng.choice([c for c in CHARACTERS if c != self.who])
        if "friend_name" not in self.asked and self.friend_name not in SHE + HE:
            self.friend_name = rng.choice([n for n in SHE + HE if n != self.name])
        if "who" not in self.asked and self.who not in CHARACTERS:
            self.who = rng.choice([c for c in CHARACTERS if c != self.friend])
        if "name" not in self.asked and self.name not in SHE + HE:
            self.name = rng.choice([n for n in (SHE if self.female else HE) if n != self.friend_name])
        if "thing" not in self.asked and self.thing not in OBJECTS:
            self.thing = rng.choice(list(OBJECTS))
            self.thing_adjective = rng.choice(OBJECTS[self.thing][0].split())

    def words(self):
        he, his, him = ("she", "her", "her") if self.female else ("he", "his", "him")
        return dict(N=self.name, F=self.friend_name, a=self.who, f=self.friend, o=self.thing, O=f"{self.thing_adjective} {self.thing}",
                    AO=article(f"{self.thing_adjective} {self.thing}"), A=article(f"{self.adjective} {self.who}"),
                    AF=article(f"{self.friend_adjective} {self.friend}"), P=self.place, he=he, his=his, him=him,
                    He=he.capitalize(), His=his.capitalize(), adj=self.adjective, fadj=self.friend_adjective)


OPENINGS = [
    "Once upon a time, {A} named {N} lived {P}.", "There was once {A} named {N} who lived {P}.",
    "{N} was {A} who lived {P}.", "Long ago, {A} named {N} lived {P}.",
    "Once there was {A} {P}. {His} name was {N}.", "{P_cap} lived {A}. {His} name was {N}.",
    "Far away, {P}, there lived {A} named {N}.", "This is the story of {N}, {A} who lived {P}.",
]
TRAITS = [
    "{N} had {feature} and slept in {home}.", "{N} was proud of {feature}.", "Everyone knew {N} because of {feature}.",
    "{detail}", "{detail} {N} liked it there.", "{N} loved to explore.", "Every morning, {N} {moved} out to see what was new.",
    "{N} was known for being {adj}.",
]
SCENES = ["It was {aweather} {time}. {sky}", "One {weather} {time}, {N} {moved} out of {home}.", "One {weather} {time}, something happened. {sky}", "Then came {aweather} {time}. {sky}"]
FINDS = ["{N} found {AO} {spot}.", "There, {spot}, lay {AO}.", "{Spot}, {he} saw {AO}.", "{N} looked {spot}, and there was {AO}!"]
LOOKS = ["{look}", "{look} {N} had never seen anything like it.", "{look} {N} picked it up.", "\"What is this?\" {he} said. {look}"]
MEETS = ["Soon {he} met {AF} named {F}.", "A little later, {he} met {F}, {AF}.", "On the way, {he} met {AF} called {F}.", "Just then {AF} named {F} came along.", "Not far away sat {AF} named {F}."]
ASKS = ["\"What is the matter?\" asked {N}. {need}", "{need} \"Please help me,\" said {F}.", "{need} \"Do not worry,\" said {N}.", "{F} looked unhappy. {need}", "{need} {N} thought for a moment."]
IDEAS = ["Then {N} remembered the {O}.", "\"I have {AO},\" said {N}.", "\"Maybe the {o} can help,\" said {N}.", "Then {he} had an idea."]
THANKS = ["\"Thank you, {N}!\" said {F}.", "\"You are a true friend,\" said {F}.", "{F} was so happy that {N} had to laugh.", "\"How can I ever thank you?\" asked {F}. \"Be my friend,\" said {N}.", "{F} smiled from ear to ear."]
ENDS = ["{lesson}", "{lesson}", "{lesson} And the {O} was never forgotten.", "That {night}, {N} went home to {home}. {lesson}"]
KEEPS = ENDS + ["{lesson} {N} kept the {o} forever."]

PLOTS = {
    "help": [OPENINGS, TRAITS, SCENES, FINDS, LOOKS, MEETS, ASKS, IDEAS, ["{help}"], THANKS, ENDS],
    "lost": [OPENINGS, ["{He} had {AO} and loved it very much.", "{His} greatest treasure was {AO}.", "{N} owned {AO} and took it everywhere."], ["{look}"],
             ["But one {weather} {time}, the {o} was gone.", "One {time}, {he} woke up and the {o} was not there.", "Then one {time} the {O} was lost."],
             ["{N} looked {spot}, but there was nothing.", "{He} searched {spot} and {spot2}, but the {o} was not there.", "{N} {moved} here and there and looked everywhere."],
             ["\"Have you seen my {o}?\" {he} asked {F}, {AF}.", "Then {he} asked {AF} named {F}."],
             ["\"I have not seen it,\" said {F}, \"but I will help you look.\"", "\"Let us look together,\" said {F}.", "\"Two of us will find it,\" said {F}."],
             ["They looked all day. At last they found the {o} {spot3}!", "And there, {spot3}, was the {O}!", "Just when {N} wanted to give up, {F} called, \"Here it is!\" The {o} was {spot3}."],
             ["{N} danced with joy.", "\"My {o}!\" cried {N}. \"Thank you, {F}!\"", "{N} laughed and hugged {F}."], KEEPS],
    "share": [OPENINGS, TRAITS, ["One {weather} {time}, {N} and {AF} named {F} found {AO} at the same moment.", "One {time}, {he} found {AO} {spot}. But {AF} named {F} had seen it too."],
              ["{look}"], ["\"It is mine!\" said {N}. \"No, it is mine!\" said {F}.", "\"I saw it first,\" said {F}. \"No, I did,\" said {N}.", "They pulled at the {o}, one on each side."],
              ["They quarreled until the sun went down.", "For a long time nobody said a word.", "They both sat down and were angry."],
              ["Then {N} said, \"It is no fun to have the {o} alone. Let us share it.\"", "At last {F} said, \"You can have it today, and I will have it tomorrow.\"", "Then {N} looked at {F} and felt sorry. \"We can share the {o},\" {he} said."],
              ["So they shared the {O}, and it was twice as good.", "From then on, the {o} belonged to both of them.", "They took turns with the {o} and laughed a lot."], ENDS],
    "gift": [OPENINGS, TRAITS, ["{His} best friend was {F}, {AF}.", "{N} had a good friend, {AF} named {F}."], ["Soon it was the birthday of {F}.", "Tomorrow was {F}'s birthday, and {N} had no gift."],
             ["{N} thought and thought. All {he} had was {AO}.", "There was only one fine thing in {home}: {AO}.", "On the way to the party, {N} found {AO} {spot}."], ["{look}"],
             ["\"It is hard to give it away,\" thought {N}, \"but {F} will love it.\"", "So {he} wrapped the {o} in a big leaf.", "{N} tied a ribbon around the {O}."],
             ["\"A {O}!\" cried {F}. \"It is the best gift of all.\"", "When {F} opened it, there was a long silence, and then a big smile.", "{F} held the {o} close and could not stop smiling."],
             ["They ate cake and sang until late.", "They played with the {o} all {time}.", "Then they danced until the stars came out."], ENDS],
    "return": [OPENINGS, TRAITS, SCENES, FINDS, LOOKS, ["\"I could keep it,\" thought {N}. \"But it is not mine.\"", "{N} wanted to keep it, but somebody was surely missing it.", "\"Whose {o} is this?\" {he} asked."],
               ["{He} asked the wind, {he} asked the birds, but nobody knew.", "So {he} {moved} from door to door and asked everyone.", "{He} carried the {o} a long way and asked everyone {he} met."],
               ["At last {he} came to {AF} named {F}, who was crying.", "In the end {he} met {F}, {AF}, who was looking for something.", "Then {AF} named {F} came running."],
               ["\"My {o}!\" cried {F}. \"I thought it was gone forever.\"", "\"That is my {O}!\" said {F}. \"You brought it back!\"", "\"I have lost my {o},\" said {F}. {N} held it out with a smile."],
               ["{F} gave {N} a warm hug and a bowl of soup.", "\"You could have kept it,\" said {F}, \"but you did not.\"", "{F} asked {N} to stay for supper, and they became friends."], ENDS],
    "fear": [OPENINGS, ["{He} was afraid of the dark.", "Nobody was more careful than {N}.", "At night, every sound made {him} jump."], ["One {weather} night, {he} heard a noise. Tap, tap, tap.", "One night, a strange sound came from outside. Whoo, whoo!"],
             ["{N} hid under the leaves. \"What if somebody needs help?\" {he} thought.", "{N} shook with fear, but {he} was curious too.", "\"I am afraid,\" said {N}, \"but I will look.\""],
             ["{He} took {his} {O} and {moved} into the dark.", "{He} held {his} {O} tight and went out, step by step.", "With {AO} and a beating heart, {he} {moved} outside."], ["{look}"],
             ["But it was no monster. It was only {AF} named {F}.", "And what was there? Only {F}, {AF}, who was even more afraid."], ["{need}"], ["{help}"],
             ["\"How brave you are!\" said {F}.", "\"I was afraid too,\" said {N}, and they both laughed.", "\"You came all alone in the dark,\" said {F}."], KEEPS],
    "make": [OPENINGS, ["More than anything, {N} wanted {AO}.", "{N} dreamed of {AO} every night.", "All the others had {AO}, only {N} had none."], ["\"Then I will make one myself,\" said {N}.", "\"I will work until I have one,\" {he} said."],
             ["{F}, {AF}, only laughed. \"You will never do it,\" said {F}.", "{AF_cap} named {F} came to watch."],
             ["The first {o} fell apart.", "On the first day, everything went wrong.", "{N} tried once, and it was a mess."], ["The second one was crooked.", "{He} tried again, and it was a little better.", "On the second day, it almost worked."],
             ["But {N} did not give up.", "{N} took a deep breath and tried once more.", "\"One more time,\" said {N}."],
             ["And on the third day, there it was: {AO}.", "And this time it worked. It was a real {O}!", "At last the {O} was ready."], ["{look}"],
             ["\"I was wrong,\" said {F}. \"It is wonderful.\"", "Even {F} clapped and cheered.", "\"Will you show me how?\" asked {F}."], KEEPS],
    "contest": [OPENINGS, TRAITS, ["One {weather} {time}, there was a big fair.", "Every year there was a great contest, and everyone came."], ["Everybody brought something grand. {N} only brought {AO}.", "{N} had nothing to show but {AO}."],
                ["{look} But the others laughed.", "\"Is that all?\" asked the others.", "\"What a silly little {o},\" said the others."],
                ["Then a cry was heard. It was {F}, {AF}.", "Suddenly {F} came in. {F} was {AF}."], ["{need} Nobody knew what to do.", "{need} All the others just stood there."], ["{help}"],
                ["Everyone cheered, and {N} won the first prize.", "Now nobody laughed any more.", "\"Three cheers for {N}!\" called the others."], ENDS],
    "storm": [OPENINGS, TRAITS, ["One {time}, a great storm came up.", "One {time}, the sky turned black and the wind began to howl."], ["{N} {moved} home as fast as {he} could, with only {AO} to carry.", "{N} took {his} {O} and looked for shelter."],
              ["In a dry corner sat {AF} named {F}.", "Under a rock, {he} found {F}, {AF}."], ["{need}", "\"May I stay with you?\" asked {N}. \"Of course,\" said {F}."], ["{N} showed {F} the {o}. {look}", "\"Look what I have,\" said {N}. It was the {o}. {look}"],
              ["They told each other stories until the thunder was far away.", "They sang so loudly that they did not hear the thunder.", "Outside it crashed and roared, but inside it was warm."],
              ["In the morning the sun came out, and there was a rainbow.", "When the storm was over, everything sparkled."], ENDS],
    "funny": [OPENINGS, TRAITS, FINDS, ["{look}"], ["{N} did not know what a {o} was for.", "\"This must be a hat,\" said {N}.", "{N} sniffed it, shook it and listened to it."],
              ["So {he} put the {o} on {his} head and {moved} through the streets.", "{He} tried to eat the {o}, but it did not taste good.", "{He} said good morning to the {o}, but the {o} said nothing."],
              ["{F}, {AF}, saw it and laughed so hard that {F} fell into a puddle. Splash!", "{AF_cap} named {F} saw it and began to giggle, hee hee hee."],
              ["\"That is a {O}, you silly {a}!\" said {F}.", "\"You are holding it upside down!\" said {F}."], ["{N} turned red, and then {he} laughed too.", "Then {N} laughed so loudly that the birds flew up.", "They laughed until their bellies hurt."],
              ["And from that day on, {N} wore the {o} every Sunday.", "And if you listen closely, you can still hear them laughing.", "And the {o}? It laughed too, but very quietly."]],
}
PLOTS_FOR = {
    "kindness": ("help", "gift"), "courage": ("fear",), "sharing": ("share",), "honesty": ("return",), "patience": ("make", "lost"),
    "friendship": ("lost", "storm", "gift", "help"), "helping others": ("help", "fear"), "believing in yourself": ("contest", "make"),
}


def tell(tale, rng):
    """The story as text, and what it says about its plot: `spot` where the object was."""
    words = tale.words()
    known = OBJECTS.get(tale.thing)
    look, need, help_ = known[1:] if known else rng.choice(PLAIN_OBJECT)
    moved, feature, home = CHARACTERS.get(tale.who, ("walked", "a warm smile", "a quiet little place"))
    spots, detail = PLACES.get(tale.place, (PLAIN_SPOTS, "It was a good place to live."))
    spots = rng.sample(list(spots), 3)
    words |= dict(moved=moved, feature=feature, home=home, detail=detail, spot=spots[0], Spot=spots[0].capitalize(), spot2=spots[1], spot3=spots[2],
                  weather=tale.weather, aweather=article(tale.weather), sky=WEATHER[tale.weather], time=rng.choice(TIMES), night=rng.choice(["night", "evening"]))
    words["P_cap"] = words["P"][0].upper() + words["P"][1:]
    words["AF_cap"] = words["AF"].capitalize()
    for key, text in (("look", look), ("need", need), ("help", help_), ("lesson", rng.choice(LESSONS[tale.theme]))):
        words[key] = text.format(**words)
    if tale.style == "short":
        beats = [OPENINGS, FINDS, [MEETS[0] + " {need}", MEETS[1] + " {need}"], ["{help}"], ["{lesson}"]]
    else:
        beats = PLOTS["funny" if tale.style == "funny" else rng.choice(PLOTS_FOR[tale.theme])]
        if len(beats) > 9 and rng.random() < 0.5:
            beats = [b for b in beats if b is not TRAITS]
    text = " ".join(rng.choice(beat).format(**words) for beat in beats)
    if tale.style == "sad":
        text += " " + rng.choice(["But one day {F} had to go away, and {N} was sad for a long time.", "When winter came, {F} moved far away, and {N} often looked at the empty road and cried a little."]).format(**words)
    if tale.style == "bedtime":
        text += " " + rng.choice(["Then {N} yawned, curled up and fell asleep. Good night, little {a}.", "And when the moon came up, {N} closed {his} eyes. Sleep well, {N}. Sleep well, you too."]).format(**words)
    return text[0].upper() + text[1:]


STARTS = ["Tell me {S}", "Can you tell me {S}", "Could you tell me {S}", "Please tell me {S}", "Write {S}", "Please write {S}", "Write me {S}", "Can you write {S}", "Make up {S}", "I want {S}", "I would like {S}",
          "I'd like to hear {S}", "Give me {S}", "Tell us {S}", "Create {S}", "Let us hear {S}", "Do you know {S}", "Tell {S}", "I want to hear {S}", "Now tell me {S}", "Invent {S}", "Would you tell me {S}"]
QUESTIONS = ("Can", "Could", "Do", "Would")


def prompt(tale, rng, short=0.09):
    """A wish that names some slots. Sets `tale.asked` to the names of the slots it mentions. `short` is the share of short stories."""
    asked = set()
    style = "short" if rng.random() < short else rng.choice(["funny", "bedtime", "sad"]) if rng.random() < 0.14 else ""
    tale.style = style
    kind = rng.choice(["story", "story", "story", "story", "tale", "little story"])
    wish = article(f"{style} {kind}".strip() if style else rng.choice([kind, kind, f"{rng.choice(FEELINGS)} {kind}"]))
    topic = rng.random()
    plain_who, plain_friend = rng.random() < 0.7, rng.random() < 0.85
    who = article(tale.who if plain_who else f"{tale.adjective} {tale.who}")
    thing = article(tale.thing if rng.random() < 0.65 else f"{tale.thing_adjective} {tale.thing}")
    if rng.random() < 0.06:
        who = who.replace("a ", "the ", 1) if who.startswith("a ") else "the " + who[3:]
    named = rng.random() < 0.35
    if topic < 0.04:
        text = wish
    elif topic < 0.10:
        asked |= {"thing"}
        text = f"{wish} about {thing}"
    else:
        asked |= {"who"}
        text = f"{wish} about {who}"
        if named:
            asked |= {"name"}
            text += rng.choice([f" named {tale.name}", f" called {tale.name}", f" whose name is {tale.name}"])
        if rng.random() < 0.18:
            asked |= {"friend"}
            friend = article(tale.friend if plain_friend else f"{tale.friend_adjective} {tale.friend}")
            text += f" and {friend}"
            if rng.random() < 0.25:
                asked |= {"friend_name"}
                text += f" named {tale.friend_name}"
            if rng.random() < 0.5:
                asked |= {"thing"}
                text += rng.choice([f" with {thing}", f" who find {thing}", f" and {thing}", f", and {thing}"])
        elif rng.random() < 0.72:
            asked |= {"thing"}
            text += rng.choice([f" and {thing}", f" and {thing}", f" and {thing}", f" who finds {thing}", f" with {thing}", f" that finds {thing}", f" who has {thing}", f" and its {tale.thing}", f" and the {tale.thing}", f" looking for {thing}"])
        if rng.random() < 0.3:
            asked |= {"place"}
            text += rng.choice([f" {tale.place}", f" {tale.place}", f" who lives {tale.place}" if "thing" not in asked and "friend" not in asked else f" {tale.place}", f", set {tale.place}"])
        if not style and rng.random() < 0.16:
            asked |= {"theme"}
            text += rng.choice([f" and a lesson about {tale.theme}", f", about {tale.theme}", f" that teaches {tale.theme}", f" and {tale.theme}"])
        if rng.random() < 0.06:
            asked |= {"weather"}
            text += rng.choice([f" on a {tale.weather} day", f" on a {tale.weather} night"])
    if "who" in asked and rng.random() < 0.08:
        nouns = [tale.who] + ([tale.thing] if "thing" in asked else []) + ([tale.name] if "name" in asked else [])
        asked -= {"friend", "friend_name", "place", "theme", "weather"}
        tale.style = ""
        text = rng.choice(["Story: {x}", "A story with these words: {x}", "{x}", "Write a story. Words: {x}", "Use these words in a story: {x}", "Story about {x}"]).format(x=", ".join(nouns))
        if text == nouns[0]:
            text = f"story {nouns[0]}"
        end = rng.choice(["", "."])
    elif "who" in asked and rng.random() < 0.05:
        text, end = text[text.index("about"):] if rng.random() < 0.5 else text.split(" about ", 1)[1], rng.choice(["", "."])
        text = text if rng.random() < 0.5 else text.capitalize() if not asked & {"name", "friend_name"} else text
    elif rng.random() < 0.08:
        text, end = text.split(" ", 1)[1].capitalize(), rng.choice(["", "."])
    else:
        start = rng.choice(STARTS)
        text = start.replace("{S}", text)
        end = "?" if start.startswith(QUESTIONS) else "."
        if rng.random() < 0.1:
            text += rng.choice([" please", ", please"])
        if rng.random() < 0.3:
            end = rng.choice(["", "", "!"])
    tale.asked = frozenset(asked)
    text += end
    return text.lower() if rng.random() < 0.12 else text


def used(tale, story):
    """Of the slots the prompt names, the share that the story mentions."""
    wanted = {"who": tale.who, "name": tale.name, "friend": tale.friend, "friend_name": tale.friend_name, "thing": tale.thing, "place": tale.place.split()[-1]}
    low = story.lower()
    hits = [wanted[slot].lower() in low for slot in tale.asked if slot in wanted]
    return hits


ASK_AFTER = {
    "name": (["What was the name of the {a}?", "What was the {a}'s name?", "what was the {a} called?", "Who was the {a}?", "What is the name of the {a}"], ["The {a}'s name was {N}.", "The {a} was called {N}."]),
    "friend_name": (["What was the name of the {f}?", "What was the {f} called?", "What was the {f}'s name?", "who was the {f}?"], ["The {f}'s name was {F}.", "The {f} was called {F}."]),
    "friend": (["Who did {N} meet?", "Who was the friend of {N}?", "Who else was in the story?"], ["{N} met {F}, {AF}.", "It was {F}, {AF}."]),
    "thing": (["What was the story about?", "What thing was in the story?", "What was special in the story?"], ["It was about {N} and {AO}.", "The story was about {N} the {a} and {AO}."]),
    "place": (["Where did {N} live?", "Where did the {a} live?", "Where was the story?", "where did it happen?"], ["{N} lived {P}.", "It happened {P}."]),
    "theme": (["What is the lesson?", "What did {N} learn?", "What is the moral of the story?"], ["The story is about {theme}.", "It is a story about {theme}."]),
    "who": (["Who is {N}?", "Who was {N}?", "What animal is {N}?"], ["{N} is {A}.", "{N} is the {a} of the story."]),
    "short": (["Make it shorter.", "Tell it in one sentence.", "Summarize the story.", "can you make it shorter?", "Give me a summary."], ["{N}, {A}, had an adventure {P} with {F} the {f} and {AO}.", "It is about {N}, {A}, who lived {P}, met {F} the {f}, and had {AO}."]),
    "liked": (["Nice story!", "I liked that.", "That was a good story", "Great!", "Thank you, that was nice."], ["I am glad that you liked {N} the {a}.", "Thank you! I like {N} too.", "I am happy to hear that. {N} says hello."]),
}
MORE_ASKS = ["Continue the story.", "What happened next?", "And then?", "Tell me more.", "continue", "Go on.", "What did {N} do then?", "Can you continue the story?", "more please", "Tell me more about {N}."]
MORE = [
    ["The next {time}, {N} met {F} again.", "A few days later, {N} came back to {F}.", "When spring came, {N} set out once more with the {O}."],
    ["They took the {o} and {moved} all the way to the far hills.", "\"Shall we look for another {o}?\" asked {F}. \"Yes!\" said {N}.", "\"Let us go on a journey,\" said {N}, and {F} packed some bread."],
    ["On the way they saw a rainbow and heard a strange song.", "They crossed a river and slept under the stars.", "It rained a little, but they did not mind."],
    ["In the evening they sat {P} and looked at the sky.", "At last they came back, tired and happy.", "When they came home {P}, everyone wanted to hear their story."],
    ["And {N} said, \"With you, {F}, every day is an adventure.\"", "And {N} the {a} slept very well that night.", "And {F} the {f} said, \"Tomorrow we will do it again.\""],
]


def follow_up(tale, rng, story):
    """A question about the story just told and its answer, or a continuation."""
    words = tale.words() | dict(theme=tale.theme, time=rng.choice(["morning", "day"]), moved="walked")
    if rng.random() < 0.25:
        return rng.choice(MORE_ASKS).format(**words), " ".join(rng.choice(beat) for beat in MORE).format(**words)
    options = [key for key in ASK_AFTER if not (key.startswith("friend") or key in ("friend", "short")) or tale.friend_name in story]
    if tale.style in ("funny", "short"):
        options = [key for key in options if key != "theme" or tale.style == "short"]
    asks, answers = ASK_AFTER[rng.choice(options)]
    return rng.choice(asks).format(**words), rng.choice(answers).format(**words)


if __name__ == "__main__":
    rng = random.Random(1)
    for _ in range(12):
        tale = Tale.draw(rng)
        print(">", prompt(tale, rng), sorted(tale.asked))
        story = tell(tale, rng)
        print(story, used(tale, story), len(story.split()))
        print(follow_up(tale, rng, story), "\n")
