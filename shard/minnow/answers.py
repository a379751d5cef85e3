"""Short answers about a small world: facts, sums, lists, words in other languages, manners, and an honest no.

`ANSWERS` is the table of kinds with their weights; each kind is a function from a random generator to (question, answer).
"""

from stories import FEELINGS, article, invented
from words import CHARACTERS, HE, OBJECTS, SHE

COLORS = {"the sky": "blue", "grass": "green", "snow": "white", "coal": "black", "blood": "red", "a lemon": "yellow", "a banana": "yellow", "an orange": "orange", "a carrot": "orange", "milk": "white", "chocolate": "brown", "the sun": "yellow", "a tomato": "red", "a strawberry": "red", "a cucumber": "green", "a frog": "green", "an elephant": "gray", "a mouse": "gray", "a fox": "red", "a bear": "brown", "a crow": "black", "a swan": "white", "a flamingo": "pink", "a pig": "pink", "a plum": "purple", "an eggplant": "purple", "a blueberry": "blue", "the sea": "blue", "gold": "yellow", "silver": "gray", "a polar bear": "white", "a pumpkin": "orange", "a cherry": "red", "a leaf": "green", "a fire truck": "red", "wood": "brown", "the night": "black", "a pea": "green", "butter": "yellow", "a rose": "red", "a cloud": "white", "sand": "yellow", "honey": "yellow", "an emerald": "green", "a ruby": "red"}
SOUNDS = {"dog": "woof", "cat": "meow", "cow": "moo", "sheep": "baa", "goat": "meh", "pig": "oink", "horse": "neigh", "donkey": "hee-haw", "duck": "quack", "goose": "honk", "hen": "cluck", "rooster": "cock-a-doodle-doo", "chick": "cheep", "bird": "tweet", "crow": "caw", "owl": "hoo hoo", "bee": "buzz", "fly": "buzz", "snake": "hiss", "frog": "croak", "lion": "roar", "tiger": "roar", "wolf": "howl", "mouse": "squeak", "elephant": "toot", "monkey": "ooh ooh ah ah", "turkey": "gobble", "cricket": "chirp", "pigeon": "coo", "bear": "growl", "seal": "arf"}
HOMES = {"bird": "a nest", "bee": "a hive", "ant": "an anthill", "spider": "a web", "fox": "a den", "bear": "a cave", "rabbit": "a burrow", "dog": "a kennel", "horse": "a stable", "cow": "a barn", "pig": "a pen", "fish": "the water", "whale": "the sea", "shark": "the sea", "lion": "the savanna", "penguin": "the cold south", "camel": "the desert", "monkey": "the jungle", "beaver": "a lodge", "mole": "a tunnel", "owl": "a hollow tree", "snail": "its shell", "bat": "a cave", "wolf": "a den", "squirrel": "a tree", "frog": "a pond", "king": "a castle", "panda": "a bamboo forest", "polar bear": "the cold north", "eagle": "a nest on a cliff"}
BABIES = {"dog": "puppy", "cat": "kitten", "cow": "calf", "sheep": "lamb", "goat": "kid", "pig": "piglet", "horse": "foal", "duck": "duckling", "goose": "gosling", "hen": "chick", "bear": "cub", "lion": "cub", "fox": "kit", "frog": "tadpole", "deer": "fawn", "swan": "cygnet", "owl": "owlet", "kangaroo": "joey", "wolf": "pup", "seal": "pup", "whale": "calf", "elephant": "calf", "butterfly": "caterpillar", "eagle": "eaglet"}
LEGS = {"spider": 8, "ant": 6, "bee": 6, "dog": 4, "cat": 4, "horse": 4, "cow": 4, "bird": 2, "duck": 2, "hen": 2, "snake": 0, "fish": 0, "worm": 0, "human": 2, "crab": 10, "fly": 6, "beetle": 6, "butterfly": 6, "frog": 4, "lion": 4, "fox": 4, "table": 4, "penguin": 2, "elephant": 4, "mouse": 4}
FOOD = {"rabbit": "grass and carrots", "cow": "grass", "horse": "hay and oats", "cat": "fish and meat", "dog": "meat and bones", "mouse": "seeds and cheese", "bear": "berries and honey", "bee": "nectar", "panda": "bamboo", "koala": "leaves", "lion": "meat", "owl": "mice", "squirrel": "nuts", "monkey": "bananas", "frog": "flies", "spider": "flies", "penguin": "fish", "sheep": "grass", "elephant": "leaves and grass", "giraffe": "leaves", "fox": "mice and berries", "hen": "grain", "caterpillar": "leaves", "seal": "fish", "shark": "fish", "pig": "almost everything"}
OPPOSITES = [p.split("/") for p in "hot/cold big/small tall/short long/short fast/slow happy/sad day/night good/bad old/new young/old light/dark open/closed full/empty hard/soft wet/dry up/down left/right in/out early/late loud/quiet rich/poor strong/weak thick/thin heavy/light high/low near/far first/last begin/end love/hate friend/enemy win/lose give/take true/false clean/dirty sweet/sour brave/afraid easy/difficult black/white summer/winter north/south east/west above/below before/after always/never push/pull buy/sell ask/answer laugh/cry wide/narrow deep/shallow smooth/rough sharp/blunt right/wrong yes/no hello/goodbye awake/asleep same/different".split()]
CAPITALS = {"France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon", "Austria": "Vienna", "Switzerland": "Bern", "Belgium": "Brussels", "Netherlands": "Amsterdam", "Denmark": "Copenhagen", "Sweden": "Stockholm", "Norway": "Oslo", "Finland": "Helsinki", "Iceland": "Reykjavik", "Ireland": "Dublin", "England": "London", "Scotland": "Edinburgh", "Poland": "Warsaw", "Hungary": "Budapest", "Greece": "Athens", "Turkey": "Ankara", "Russia": "Moscow", "Ukraine": "Kyiv", "Romania": "Bucharest", "Bulgaria": "Sofia", "Croatia": "Zagreb", "Egypt": "Cairo", "Kenya": "Nairobi", "Morocco": "Rabat", "India": "New Delhi", "China": "Beijing", "Japan": "Tokyo", "South Korea": "Seoul", "Thailand": "Bangkok", "Vietnam": "Hanoi", "Australia": "Canberra", "New Zealand": "Wellington", "Canada": "Ottawa", "Mexico": "Mexico City", "Cuba": "Havana", "Brazil": "Brasilia", "Argentina": "Buenos Aires", "Chile": "Santiago", "Peru": "Lima", "the United States": "Washington"}
MADE_OF = {"bread": "flour, water and salt", "cheese": "milk", "butter": "milk", "glass": "sand", "paper": "wood", "a book": "paper", "a table": "wood", "a window": "glass", "a sweater": "wool", "a snowman": "snow", "an omelet": "eggs", "wine": "grapes", "ice": "frozen water", "a castle": "stone", "a ring": "gold or silver", "honey": "nectar, by bees", "chocolate": "cocoa beans", "a candle": "wax", "a brick": "clay", "a nest": "twigs", "rain": "drops of water", "a cloud": "tiny drops of water", "a pancake": "flour, milk and eggs", "a shoe": "leather", "a tire": "rubber", "a coin": "metal", "a key": "metal", "a pencil": "wood and graphite", "a pizza": "dough, tomatoes and cheese", "soup": "water and vegetables"}
USES = {"an umbrella": "to stay dry in the rain", "a key": "to open a lock", "a knife": "to cut things", "a spoon": "to eat soup", "a pen": "to write", "a lamp": "to give light", "a clock": "to tell the time", "a map": "to find the way", "a compass": "to find north", "a bed": "to sleep in", "a boat": "to cross the water", "a ladder": "to climb up", "a hammer": "to drive in nails", "a needle": "to sew", "a broom": "to sweep the floor", "a telescope": "to look at the stars", "a bell": "to make a clear sound", "a basket": "to carry things", "a blanket": "to keep warm", "a book": "to read", "a candle": "to make light", "a cup": "to drink from", "a mirror": "to see yourself", "a rope": "to tie or pull things", "a bucket": "to carry water", "soap": "to wash", "a telephone": "to talk to people far away", "a lantern": "to see in the dark", "a kite": "to play in the wind", "a scarf": "to keep your neck warm"}
PLURALS = {"mouse": "mice", "goose": "geese", "foot": "feet", "tooth": "teeth", "child": "children", "man": "men", "woman": "women", "leaf": "leaves", "wolf": "wolves", "fish": "fish", "sheep": "sheep", "knife": "knives", "fox": "foxes", "berry": "berries", "box": "boxes", "cat": "cats", "dog": "dogs", "tree": "trees", "house": "houses", "bird": "birds", "baby": "babies", "city": "cities"}
PASTS = {"go": "went", "run": "ran", "swim": "swam", "eat": "ate", "sing": "sang", "see": "saw", "come": "came", "give": "gave", "take": "took", "find": "found", "fly": "flew", "sleep": "slept", "write": "wrote", "think": "thought", "bring": "brought", "fall": "fell", "is": "was", "have": "had", "jump": "jumped", "walk": "walked", "play": "played"}
RHYMES = {"cat": "hat", "house": "mouse", "tree": "bee", "moon": "spoon", "star": "far", "fox": "box", "frog": "log", "bear": "chair", "night": "light", "snow": "grow", "sky": "fly", "sun": "run", "boat": "goat", "king": "ring", "cake": "lake", "rain": "train", "book": "cook", "day": "play", "sea": "tea", "bed": "red", "ball": "tall", "dog": "fog", "wish": "fish", "owl": "howl", "hill": "mill"}
WORDS_ABROAD = {
    "French": {"hello": "bonjour", "goodbye": "au revoir", "thank you": "merci", "please": "s'il vous plaît", "yes": "oui", "no": "non", "good night": "bonne nuit", "friend": "ami", "cat": "chat", "dog": "chien", "water": "eau", "sun": "soleil", "fish": "poisson", "house": "maison", "love": "amour"},
    "German": {"hello": "hallo", "goodbye": "auf Wiedersehen", "thank you": "danke", "please": "bitte", "yes": "ja", "no": "nein", "good night": "gute Nacht", "friend": "Freund", "cat": "Katze", "dog": "Hund", "water": "Wasser", "sun": "Sonne", "fish": "Fisch", "house": "Haus", "love": "Liebe"},
    "Spanish": {"hello": "hola", "goodbye": "adiós", "thank you": "gracias", "please": "por favor", "yes": "sí", "no": "no", "good night": "buenas noches", "friend": "amigo", "cat": "gato", "dog": "perro", "water": "agua", "sun": "sol", "fish": "pez", "house": "casa", "love": "amor"},
    "Italian": {"hello": "ciao", "goodbye": "arrivederci", "thank you": "grazie", "please": "per favore", "yes": "sì", "no": "no", "good night": "buona notte", "friend": "amico", "cat": "gatto", "dog": "cane", "water": "acqua", "sun": "sole", "fish": "pesce", "house": "casa", "love": "amore"},
    "Dutch": {"hello": "hallo", "goodbye": "tot ziens", "thank you": "dank je", "please": "alsjeblieft", "yes": "ja", "no": "nee", "good night": "welterusten", "friend": "vriend", "cat": "kat", "dog": "hond", "water": "water", "sun": "zon", "fish": "vis", "house": "huis", "love": "liefde"},
}
GROUPS = {
    "animals": "a fox, a bear, an owl, a horse, a rabbit, a frog, a lion, a whale, a mouse, a duck".split(", "),
    "birds": "an owl, a robin, a crow, an eagle, a swan, a sparrow, a parrot".split(", "),
    "fruits": "an apple, a pear, a banana, a cherry, a plum, an orange, a lemon".split(", "),
    "vegetables": "a carrot, a pea, a potato, a cabbage, an onion, a leek".split(", "),
    "colors": "red, blue, green, yellow, orange, purple, white, black".split(", "),
    "countries": "France, Japan, Brazil, Egypt, Canada, India, Spain, Kenya".split(", "),
    "cities": "Paris, Tokyo, Rome, Berlin, Cairo, London, Lima, Oslo".split(", "),
    "flowers": "a rose, a daisy, a tulip, a lily, a poppy, a violet".split(", "),
    "trees": "an oak, a pine, a birch, a willow, a maple, an elm".split(", "),
    "insects": "an ant, a bee, a beetle, a butterfly, a fly, a moth".split(", "),
    "tools": "a hammer, a saw, a shovel, a needle, a ladder, a rake".split(", "),
    "musical instruments": "a drum, a flute, a violin, a piano, a guitar, a trumpet".split(", "),
    "numbers": "one, two, three, five, seven, ten".split(", "),
    "planets": "Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune".split(", "),
    "seasons": "spring, summer, autumn, winter".split(", "),
    "sea animals": "a whale, a crab, a seal, a dolphin, an octopus, a shark".split(", "),
    "farm animals": "a cow, a pig, a sheep, a hen, a horse, a goat".split(", "),
    "names": "Luna, Finn, Rosa, Otto, Ella, Max, Nora, Leo".split(", "),
    "drinks": "water, milk, tea, juice, lemonade, cocoa".split(", "),
    "things in a kitchen": "a pot, a spoon, a cup, a knife, a plate, a stove".split(", "),
}
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty".split()
BIG = "ant mouse frog rabbit cat fox dog sheep pig horse cow bear elephant whale".split()

ABOUT = [
    (["Who are you?", "What are you?", "who are you", "Tell me about yourself.", "Introduce yourself.", "Are you a robot?", "Are you an AI?"], ["I am Minnow, the small model that swims inside Shoal. I can tell stories and answer simple questions."]),
    (["What is your name?", "what's your name?", "Do you have a name?", "Your name?", "How are you called?"], ["My name is Minnow.", "I am called Minnow."]),
    (["What can you do?", "What are you good at?", "Help", "help me", "How can you help me?", "What should I ask you?", "What do you know?"], ["I can tell stories about animals and things, answer simple questions, count, and say a few words in other languages. Try: tell me a story about a fox and a lantern."]),
    (["What is Shoal?", "what is shoal", "Tell me about Shoal.", "How does Shoal work?", "Explain Shoal."], ["Shoal lets many computers run one language model together. Each computer holds a few layers, and your words swim from one to the next."]),
    (["How big are you?", "How many parameters do you have?", "Are you a large model?", "How small are you?"], ["I am very small: about five million numbers. Large models have a thousand times more."]),
    (["How were you trained?", "How were you made?", "What were you trained on?", "Who trained you?", "Who made you?", "Where do you come from?"], ["I learned from stories and answers that a small program made up. A script in the Shoal repository trained me on an ordinary computer."]),
    (["Are you human?", "Are you real?", "Are you alive?", "Do you have feelings?", "Are you a person?"], ["No, I am a small language model. I only put words together."]),
    (["Are you smart?", "Can you make mistakes?", "Can I trust you?", "Are you always right?"], ["I am a very small model and I make mistakes. Ask a larger model when it matters."]),
    (["How many layers do you have?", "How many layers are in you?"], ["I have eight layers, so up to eight computers can share me."]),
    (["What is a minnow?", "What does Minnow mean?"], ["A minnow is a very small fish that swims in a shoal with many others."]),
    (["What is a shoal?"], ["A shoal is a large group of fish that swim together."]),
    (["What is your favorite animal?", "What animal do you like?"], ["I like minnows best, but I am fond of foxes too."]),
    (["What is your favorite color?", "Which color do you like?"], ["I like blue, like the water."]),
    (["Do you sleep?", "Are you tired?"], ["I rest whenever nobody asks me anything."]),
    (["Where do you live?", "Where are you?"], ["I live inside Shoal, spread over the computers that share me."]),
]
MANNERS = [
    (["Hello", "Hi", "Hey", "hello!", "hi there", "Hello there!", "Good day", "hey minnow", "Hello Minnow", "Hi!", "hello"], ["Hello! Shall I tell you a story?", "Hi there! What would you like to hear?", "Hello! Ask me something simple, or ask for a story."]),
    (["Good morning", "good morning!", "Good morning, Minnow"], ["Good morning! What would you like to hear?"]),
    (["Good evening", "good evening!"], ["Good evening! Shall I tell you a story?"]),
    (["Good night", "good night!", "I am going to sleep"], ["Good night! Sleep well."]),
    (["How are you?", "how are you", "How are you doing?", "How do you do?", "How is it going?", "What's up?", "How are you today?"], ["I am fine, thank you. How are you?", "I am very well, thank you. Shall I tell you a story?"]),
    (["Thank you", "Thanks", "thanks!", "Thank you very much", "thank you so much", "Thanks a lot!", "thx"], ["You are welcome!", "You are welcome. Would you like another one?"]),
    (["Goodbye", "Bye", "bye!", "See you", "See you later", "Bye bye", "I have to go"], ["Goodbye! Come back soon.", "Bye! It was nice to talk to you."]),
    (["I am fine", "I am good, thanks", "Fine, thank you", "I'm fine", "I am happy"], ["I am glad to hear that. Shall I tell you a story?"]),
    (["I am sad", "I feel sad", "I'm sad today", "I had a bad day", "I am lonely"], ["I am sorry to hear that. Shall I tell you a story to cheer you up?"]),
    (["I am bored", "I'm bored", "I have nothing to do"], ["Then let me tell you a story. What should it be about?"]),
    (["Yes", "yes please", "Sure", "Ok", "okay", "Yes!"], ["Good! What should the story be about?"]),
    (["No", "no thanks", "No, thank you"], ["All right. Just ask when you need me."]),
    (["You are funny", "You are great", "I like you", "You are nice", "I love you", "good job", "Well done"], ["Thank you! I like you too.", "That is very kind of you."]),
    (["You are stupid", "You are wrong", "That is wrong", "I do not like you", "bad answer"], ["I am sorry. I am a very small model and I make mistakes."]),
    (["Sorry", "I am sorry", "Excuse me"], ["No problem at all."]),
    (["Tell me a joke", "Do you know a joke?", "Make me laugh", "joke", "Tell me a joke."], ["Why did the fish blush? It saw the bottom of the sea.", "What do you call a bear without teeth? A gummy bear.", "Why do bees hum? They do not know the words.", "What has four legs and says boo? A cow with a cold."]),
]
FACTS = [
    (["How many days are in a week?", "How many days does a week have?"], "A week has seven days."),
    (["How many months are in a year?", "How many months does a year have?"], "A year has twelve months."),
    (["How many seasons are there?", "What are the seasons?"], "There are four seasons: spring, summer, autumn and winter."),
    (["How many hours are in a day?", "How many hours does a day have?"], "A day has twenty-four hours."),
    (["How many minutes are in an hour?"], "An hour has sixty minutes."),
    (["How many seconds are in a minute?"], "A minute has sixty seconds."),
    (["What are the days of the week?", "Name the days of the week.", "List the days of the week."], "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday."),
    (["What are the months of the year?", "Name the months.", "List the months of the year."], "January, February, March, April, May, June, July, August, September, October, November and December."),
    (["What is the largest animal?", "What is the biggest animal?"], "The largest animal is the blue whale."),
    (["What is the tallest animal?"], "The tallest animal is the giraffe."),
    (["What is the fastest animal?", "Which animal is the fastest on land?"], "The fastest animal on land is the cheetah."),
    (["What is the largest planet?"], "The largest planet is Jupiter."),
    (["What is the largest ocean?"], "The largest ocean is the Pacific."),
    (["What is the highest mountain?"], "The highest mountain is Mount Everest."),
    (["Is the sun a star?", "What is the sun?"], "The sun is a star."),
    (["What is the moon?"], "The moon is a ball of rock that moves around the Earth."),
    (["What is a river?"], "A river is water that flows to the sea."),
    (["What is a forest?"], "A forest is a place with many trees."),
    (["What is a friend?"], "A friend is someone who likes you and helps you."),
    (["What is rain?"], "Rain is water that falls from the clouds."),
    (["What is snow?"], "Snow is frozen water that falls from the clouds."),
    (["What is a rainbow?"], "A rainbow is sunlight that is split into colors by drops of rain."),
    (["What colors are in a rainbow?", "What are the colors of the rainbow?"], "Red, orange, yellow, green, blue and purple."),
    (["Why is the sky blue?"], "The air scatters blue light more than red light, so the sky looks blue."),
    (["Where does the sun rise?"], "The sun rises in the east."),
    (["Where does the sun set?"], "The sun sets in the west."),
    (["Can fish fly?"], "Most fish cannot fly. They swim."),
    (["Can penguins fly?", "Can a penguin fly?"], "No, penguins cannot fly, but they swim very well."),
    (["What is water?"], "Water is a clear liquid that all living things need."),
    (["What is a computer?"], "A computer is a machine that follows instructions very fast."),
    (["What is a language model?"], "A language model is a program that has learned which words follow other words."),
    (["What is a story?"], "A story tells what happened to somebody, and why it matters."),
    (["What do plants need?"], "Plants need water, light and air."),
    (["How many legs does a dog and a bird have together?"], "Together they have six legs."),
]
NO = ["I am a very small model and I do not know that. I can tell you a story instead.", "I am too small to know that. Ask me for a story about an animal and a thing."]
UNKNOWN = [
    "Write a program that sorts a list.", "Write Python code for {x}.", "Write code", "What is the price of {x}?", "What is the weather today?", "Will it rain tomorrow?", "What time is it?", "What day is it today?", "Who is the president?",
    "Who won the game yesterday?", "What is the meaning of life?", "Solve this equation: x + {n} = {m}.", "What is {m} times {n}?", "What is the square root of {m}?", "How do I fix my {x}?", "How do I install {x}?", "Explain quantum physics.", "Explain {x}.",
    "What is {x}?", "Who is {Name}?", "Who was {Name}?", "When was {Name} born?", "Write an essay about {x}.", "Translate this text.", "Summarize this article.", "What is the news?", "Tell me about {x}.", "What do you think about {x}?", "Write an email to {Name}.",
    "How do I cook {x}?", "What is the best {x}?", "Who wrote {x}?", "When did the war end?", "What is the distance to the moon?", "Give me medical advice.", "Should I buy {x}?", "What is my password?", "Where is my {x}?", "How tall is {Name}?", "How old is {Name}?",
    "Draw a picture of {x}.", "Play some music.", "Book a flight to {Name}.", "Call {Name}.", "What is the capital of {Name}?", "What is a {x}?", "Define {x}.", "How does a {x} work?", "Which {x} is better?", "What is the difference between {x} and {x}?", "Describe {x}.", "Do my homework.", "Write a letter about {x}.",
    "Prove that {m} is prime.", "Show me a {x}.", "Fix this bug.", "What does {x} mean?", "Why is {x} important?", "How much is a {x}?", "Where can I buy {x}?", "What happened in 19{m}?", "Who invented the {x}?", "Can you explain {x} to me?", "Recommend a movie.", "What is the population of {Name}?",
]
TOPICS = "democracy, physics, chemistry, inflation, the economy, politics, love, time, gravity, football, chess, a virus, electricity, history, philosophy, evolution, bitcoin, javascript, rust, linux, a database, the internet, a neural network, DNA, coffee, sushi, pasta, art, music, climate change, war, peace, money, insurance, taxes, a lawyer, the law, printer, laptop, phone, engine, atom, galaxy, algorithm, kernel, compiler".split(", ")


def _table(table, asks, answers):
    def make(rng):
        key = rng.choice(list(table))
        slots = dict(x=key, X=key[0].upper() + key[1:], ax=article(key), y=table[key], ay=article(str(table[key])), Y=str(table[key]).capitalize())
        return rng.choice(asks).format(**slots), rng.choice(answers).format(**slots)
    return make


def _legs(rng):
    key = rng.choice(list(LEGS))
    return rng.choice([f"How many legs does {article(key)} have?", f"How many legs has {article(key)}?", f"how many legs does a {key} have"]), f"{article(key).capitalize()} has {NUMBERS[LEGS[key]] if LEGS[key] else 'no'} legs."


def _opposite(rng):
    a, b = rng.choice(OPPOSITES)
    if rng.random() < 0.4 and b not in ("short", "light", "old", "right"):
        a, b = b, a
    return rng.choice(["What is the opposite of {a}?", "Opposite of {a}?", "Tell me the opposite of {a}.", "what's the opposite of {a}", "Which word is the opposite of {a}?"]).format(a=a), f"The opposite of {a} is {b}."


def _order(rng):
    names, kind = (DAYS, "day") if rng.random() < 0.5 else (MONTHS, "month")
    i = rng.randrange(len(names))
    if rng.random() < 0.5:
        return rng.choice([f"What {kind} comes after {names[i]}?", f"Which {kind} comes after {names[i]}?", f"What comes after {names[i]}?", f"which {kind} is after {names[i]}"]), f"After {names[i]} comes {names[(i + 1) % len(names)]}."
    return rng.choice([f"What {kind} comes before {names[i]}?", f"Which {kind} comes before {names[i]}?", f"What comes before {names[i]}?"]), f"Before {names[i]} comes {names[i - 1]}."


def _count(rng):
    n = rng.randint(3, 20)
    if rng.random() < 0.25:
        n = min(n, 12)
        return rng.choice([f"Count down from {n}.", f"Count backwards from {n}.", f"Count from {n} to 1."]), ", ".join(str(i) for i in range(n, 0, -1)) + "."
    if rng.random() < 0.3:
        a = rng.randint(2, 12)
        b = a + rng.randint(2, 8)
        return f"Count from {a} to {b}.", ", ".join(str(i) for i in range(a, b + 1)) + "."
    return rng.choice([f"Count to {n}.", f"Can you count to {n}?", f"Please count from 1 to {n}.", f"count to {n}", f"Count from one to {NUMBERS[n]}."]), ", ".join(str(i) for i in range(1, n + 1)) + "."


def _sum(rng):
    words = rng.random() < 0.15
    show = (lambda n: NUMBERS[n]) if words else str
    if rng.random() < 0.6:
        a = rng.randint(0, 12)
        b = rng.randint(0, min(12, 20 - a))
        asks, sign, total = ["What is {a} plus {b}?", "What is {a} + {b}?", "{a} + {b} = ?", "{a}+{b}", "How much is {a} plus {b}?", "Add {a} and {b}.", "what is {a}+{b}?"], "plus", a + b
    else:
        a = rng.randint(1, 20)
        b = rng.randint(0, min(a, 12))
        asks, sign, total = ["What is {a} minus {b}?", "What is {a} - {b}?", "{a} - {b} = ?", "{a}-{b}", "How much is {a} minus {b}?", "Take {b} from {a}."], "minus", a - b
    return rng.choice(asks).format(a=show(a), b=show(b)), f"{show(a).capitalize() if words else a} {sign} {show(b)} is {show(total)}."


def _bigger(rng):
    i, j = rng.sample(range(len(BIG)), 2)
    word, best = ("bigger", max(i, j)) if rng.random() < 0.6 else ("smaller", min(i, j))
    a, b, c = article(BIG[i]), article(BIG[j]), article(BIG[best])
    other = b if best == i else a
    return rng.choice([f"Which is {word}, {a} or {b}?", f"What is {word}: {a} or {b}?", f"Is {a} or {b} {word}?"]), f"{c.capitalize()} is {word} than {other}."


def _larger_number(rng):
    a, b = rng.sample(range(1, 100), 2)
    return rng.choice([f"Which is larger, {a} or {b}?", f"Which number is bigger, {a} or {b}?"]), f"{max(a, b)} is larger than {min(a, b)}."


def _list(rng):
    group = rng.choice(list(GROUPS))
    n = rng.randint(2, min(5, len(GROUPS[group])))
    items = rng.sample(GROUPS[group], n)
    shown = rng.choice([NUMBERS[n], str(n)])
    return rng.choice(["Name {n} {g}.", "List {n} {g}.", "Tell me {n} {g}.", "name {n} {g}", "Can you name {n} {g}?", "Give me {n} {g}.", "What are {n} {g}?"]).format(n=shown, g=group), (", ".join(items[:-1]) + " and " + items[-1] + ".")[0].upper() + (", ".join(items[:-1]) + " and " + items[-1] + ".")[1:]


def _abroad(rng):
    tongue = rng.choice(list(WORDS_ABROAD))
    word = rng.choice(list(WORDS_ABROAD[tongue]))
    return rng.choice(["Say {w} in {t}.", "How do you say {w} in {t}?", "What is {w} in {t}?", "say {w} in {t}", "Translate {w} into {t}.", "What does {w} mean in {t}?", "{w} in {t}"]).format(w=word, t=tongue), f"In {tongue}, {word} is \"{WORDS_ABROAD[tongue][word]}\"."


def _spell(rng):
    word = rng.choice(list(CHARACTERS) + list(OBJECTS))
    return rng.choice([f"Spell {word}.", f"How do you spell {word}?", f"spell the word {word}"]), "-".join(word) + "."


def _repeat(rng):
    words = " ".join(rng.choice(list(CHARACTERS) + list(OBJECTS) + FEELINGS + [invented(rng)]) for _ in range(rng.randint(1, 5)))
    return rng.choice(["Repeat after me: {w}", "Say: {w}", "Repeat: {w}", "Please say {w}", "Say the words: {w}"]).format(w=words), words[0].upper() + words[1:] + "."


def _yes_no(rng):
    thing = rng.choice(list(COLORS))
    color = COLORS[thing] if rng.random() < 0.5 else rng.choice(sorted(set(COLORS.values())))
    if color == COLORS[thing]:
        return f"Is {thing} {color}?", f"Yes, {thing} is {color}."
    return f"Is {thing} {color}?", f"No, {thing} is {COLORS[thing]}."


def _kind_of(rng):
    animals = list(CHARACTERS)[:61]
    if rng.random() < 0.5:
        a = rng.choice(animals)
        return f"Is {article(a)} an animal?", f"Yes, {article(a)} is an animal."
    o = rng.choice(list(OBJECTS))
    return f"Is {article(o)} an animal?", f"No, {article(o)} is a thing."


def _what_is(rng):
    if rng.random() < 0.5:
        a = rng.choice(list(CHARACTERS)[:61])
        return rng.choice([f"What is {article(a)}?", f"Describe {article(a)}."]), f"{article(a).capitalize()} is an animal with {CHARACTERS[a][1]}. It sleeps in {CHARACTERS[a][2]}."
    o = rng.choice(list(OBJECTS))
    return f"Describe {article(o)}.", OBJECTS[o][1]


def _talk(table):
    def make(rng):
        asks, answers = rng.choice(table)
        return rng.choice(asks), answers if isinstance(answers, str) else rng.choice(answers)
    return make


def _unknown(rng):
    def topic():
        return invented(rng) if rng.random() < 0.35 else rng.choice(TOPICS)
    name = rng.choice(SHE + HE) if rng.random() < 0.3 else invented(rng).capitalize() + " " + invented(rng).capitalize()
    ask = rng.choice(UNKNOWN)
    while "{x}" in ask:
        ask = ask.replace("{x}", topic(), 1)
    return ask.replace("{Name}", name).replace("{n}", str(rng.randint(2, 99))).replace("{m}", str(rng.randint(11, 99))), rng.choice(NO)


POEMS = [
    ["O little {x}, so small, so bright,", "you shine for me both day and night.", "And when I wake and when I sleep,", "your song is mine to hold and keep."],
    ["I saw {ax} beside the sea.", "It turned around and smiled at me.", "I said hello, it said the same,", "and then it told me its own name."],
    ["The {x} is near, the moon is high,", "a thousand stars are in the sky.", "Good night, dear {x}, and have no fear,", "the morning comes, and I am here."],
    ["If I could have {ax} today,", "I would not give it all away.", "I'd share it once, I'd share it twice,", "for sharing makes a thing so nice."],
    ["Where is the {x}? I looked around,", "I looked above, I searched the ground.", "And then I found it, safe and still,", "my little {x} upon the hill."],
]


def _poem(rng):
    thing = rng.choice(list(OBJECTS) + list(CHARACTERS)) if rng.random() < 0.9 else invented(rng)
    ask = rng.choice(["Write a poem about {ax}.", "Tell me a poem about {ax}.", "Can you write a poem about {ax}?", "write a poem about a {x}", "Make a rhyme about {ax}.", "A poem about {ax}, please.", "Write a short poem about the {x}.", "I want a poem about {ax}"])
    return ask.format(x=thing, ax=article(thing)), "\n".join(rng.choice(POEMS)).format(x=thing, ax=article(thing))


ANSWERS = [
    (5, _table(COLORS, ["What color is {x}?", "what color is {x}", "Which color is {x}?", "What is the color of {x}?", "Tell me the color of {x}.", "What colour is {x}?"], ["{X} is {y}."])),
    (3, _table(SOUNDS, ["What does the {x} say?", "What sound does {ax} make?", "How does {ax} sound?", "what does a {x} say", "Which sound does a {x} make?"], ["The {x} says \"{y}\"."])),
    (3, _table(HOMES, ["Where does {ax} live?", "Where do you find {ax}?", "where does the {x} live", "What is the home of {ax}?"], ["The {x} lives in {y}."])),
    (2, _table(BABIES, ["What is a baby {x} called?", "What do you call a baby {x}?", "what is the name of a baby {x}?"], ["A baby {x} is called {ay}."])),
    (3, _table(FOOD, ["What does {ax} eat?", "What do you feed {ax}?", "what does the {x} eat?", "What is the food of {ax}?"], ["The {x} eats {y}."])),
    (3, _table(MADE_OF, ["What is {x} made of?", "what is {x} made of", "What do you need to make {x}?", "What is {x} made from?"], ["{X} is made of {y}."])),
    (3, _table(USES, ["What is {x} for?", "What do you use {x} for?", "Why do you need {x}?", "What can I do with {x}?"], ["You use {x} {y}."])),
    (7, _table(CAPITALS, ["What is the capital of {x}?", "what is the capital of {x}", "Capital of {x}?", "Which city is the capital of {x}?", "Tell me the capital of {x}.", "Do you know the capital of {x}?"], ["The capital of {x} is {y}."])),
    (2, _table({c: n for n, c in CAPITALS.items()}, ["Which country has the capital {x}?", "{x} is the capital of which country?", "Where is {x}?"], ["{x} is the capital of {y}."])),
    (2, _table(PLURALS, ["What is the plural of {x}?", "Plural of {x}?", "One {x}, two ...?"], ["The plural of {x} is {y}."])),
    (2, _table(PASTS, ["What is the past tense of {x}?", "What is the past of {x}?"], ["The past tense of {x} is {y}."])),
    (2, _table(RHYMES, ["What rhymes with {x}?", "Tell me a word that rhymes with {x}.", "Find a rhyme for {x}.", "which word rhymes with {x}"], ["{Y} rhymes with {x}."])),
    (2, _legs), (4, _opposite), (4, _order), (4, _count), (9, _sum), (2, _bigger), (1, _larger_number), (5, _list), (4, _abroad), (2, _spell), (3, _repeat),
    (2, _yes_no), (1, _kind_of), (1, _what_is), (6, _talk(ABOUT)), (6, _talk(MANNERS)), (4, _talk(FACTS)), (7, _unknown), (4, _poem),
]
WEIGHTS = [weight for weight, _ in ANSWERS]


def answer(rng):
    """One question with its answer, of a random kind."""
    ask, reply = rng.choices(ANSWERS, WEIGHTS)[0][1](rng)
    r = rng.random()
    if r < 0.06:
        ask = ask.lower()
    elif r < 0.12:
        ask = ask.rstrip(".?!") or ask
    elif r < 0.15 and ask.endswith("?"):
        ask = "Please tell me: " + ask
    return ask, reply
