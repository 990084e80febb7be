"""State every tuned constant of drafting, planning and methods: what it means, and what chose it.

A constant belongs here if another value would also be correct, but slower or more wasteful.
Settings of published methods, and formats, stand with the code that uses them. "By judgement" means
that no measurement of it is on record. Named commits hold the figures.
"""

from __future__ import annotations

# --- Measurements: how many are kept, how many make one, how fast old ones fade

WINDOW = 32
"""The median is taken of this many of the latest measurements. By judgement."""
LATELY = 8
"""All widths are scaled by this many of the latest forward passes without a draft, since a machine
that warms up makes all faster. By judgement; a wider window judged early drafts by a cold machine
(7f73374d)."""
FEWEST = 3
"""This many forward passes make a median; one that was measured before the first text counts as
this many. By judgement."""
SOONEST = 2
"""This many rounds tell something: forward passes without a draft come before the first draft, and
a hopeless choice is dropped after so many rounds. By judgement, within the bound of two forward
passes that the tests of steep curves (`python -m benchmarks grid`) set."""
FADE = 0.9
"""Each round multiplies the old part of a rate that follows the text (a request's, a batch's, a
completion's) by this. By judgement."""
FADE_OF_TRIALS = 0.94
"""The same for the rate of a choice of sources: some 16 rounds count. By judgement."""
FADE_OF_PROBES = 0.85
"""The same where simpler choices are probed: probes are few, so each says more. By judgement."""
SLOW_FADE = 0.98
"""The same for how often a source without a draft model is right. By judgement."""
FADE_OF_SUPPLEMENT, FADE_OF_WAITS = 0.97, 0.99
"""The same for what heads brought in addition to other sources, and for what waits for draft steps
promised and brought. By judgement; 0.98 for both moves no curve of the simulated bed by more than
0.5%, and tasks by more."""
WINDOW_OF_ROWS = 64
"""The line of a batch's rows is fitted to this many forward passes. By judgement."""

# --- Trials: what may pay is tried, judged and rested (`planning/trial.py`)

FIRST_PAUSE, MAX_PAUSE = 32, 512
"""A choice that did not pay rests for this many rounds at first, and at most: trials take a
twentieth of the time, and later a negligible part. By judgement."""
LOOK_AGAIN = 8
"""Something is looked at again after this many rounds: simpler choices after a choice that has
paid, whether any draft can pay, and a forward pass wider than those measured. For the first, see
9eedaa15: with 32 rounds a 4090 decodes mathematics at 1.37 times plain decoding's speed, with 8 at
1.72. The others are by judgement."""
TRIAL = 24
"""`auto` judges a choice after this many rounds, few of which may have had a draft. By
judgement."""
TRIAL_OF_BATCH = 4
"""A choice for a small batch is judged after this many forward passes. By judgement."""
PROBE_EVERY = 48
"""Plain decoding is measured in one round after this many rounds of drafting, or after the time
that so many take in plain decoding: 2% of the time. By judgement."""
FIRST_REST = 16
"""A draft model that takes cores or turns from the target is tried after this many rounds. By
judgement; a shorter completion is not slowed by reading its prompt twice (abaf7fbf)."""
MARGIN, MARGIN_OF_BATCH = 0.97, 1.02
"""A choice must be this many times as fast as simpler ones. A choice that drafts nothing may take a
moment longer; in a batch, a smaller gain cannot be told from noise. By judgement."""
HOPELESS, HOPELESS_IN_TURNS, HOPELESS_OF_BATCH = 0.6, 0.4, 0.75
"""A choice slower than this share of the rate of simpler choices is not tried to the end. A
rejected draft in turns has stopped the target (d674739e). Each forward pass of a batch gives every
request a token, so few choices are much slower. By judgement."""
BACKOFF_OF_BATCH = 4
"""Each rest of a batch is this many times as long as the one before: a trial that several requests
fail together does not fail by chance. By judgement."""
SAVED, LEAST_SAVED = 0.2, 0.02
"""A draft model is expected to save this share of decoding's time before it is tried, and at least
the second share. By judgement: what is never tried is never measured."""
FIRST_PROBE = 4
"""Plain decoding is first measured after this many rounds of drafting, unless another number is
given. By judgement."""

# --- The allowance: what drafts may lose

ALLOWANCE, ALLOWANCE_IN_TURNS, MAX_ALLOWANCE = 1.0, 4.0, 16.0
"""Drafts may lose this many forward passes of plain decoding before they have gained any. The
second value holds for a draft model in turns, which has to be tried against its cost, and the third
after drafts have gained much. On steep curves `auto` loses 2 in 50 tokens at most (`python -m
benchmarks grid`)."""
RUINED, REGROWTH = -0.2, 0.02
"""Below the first allowance nothing is drafted, and each round the second value grows back. By
judgement; on the same grid."""
CAUTION = 0.35
"""A draft must promise this much more for each forward pass that was lost. By judgement; on the
same grid."""
MOST_LOST, BET = 2.0, 0.25
"""One draft may lose this many forward passes of the allowance, and up to as many more for this
share of the tokens that it promises. On a CPU's curve, 14 prompts of a 1.5B: 1.26 times plain
decoding, 1.16 without (2d49d34b)."""

# --- What a forward pass costs before it is measured

UNKNOWN_FORWARD_S, UNKNOWN_STEP_S = 0.03, 0.003
"""The first forward passes of a target and of a draft model are expected to take these seconds. By
judgement."""
FIRST_TOKENS = 7
"""The first forward pass has this many draft tokens where nothing is known. By judgement."""
CLIFF = 0.4
"""Each row beyond the widest measured may cost this share of a pass without a draft, since a
plateau may end in a cliff. On a plateau of 27 ms to 32 rows and 13 ms for each row more, the first
20 tokens came at 0.6 of plain decoding's speed without it (7aa716de)."""
STEEPEST, STEP = 1.14, 1.75
"""T(n) grows as n ** 1.14 at most, or by a step, as far as few passes can tell. By judgement."""
PLATEAU = 1.15
"""A wider pass that took at most this many times as long as the widest before did not cost much
more. By judgement."""
NEAR = 2048
"""A text that differs by this many tokens changes a forward pass by a few per cent, measured on
CPUs (11f065dd)."""

# --- Batches

PATIENCE_OF_BATCH, LEAST_PATIENCE_S, MOST_PATIENCE_S = 0.25, 0.002, 0.02
"""A forward pass waits this share of its own time for requests that are not ready, within these
bounds in seconds. By judgement."""
FIRST_BUDGETS, LEAST_SHARE = (4, 12, 28), 2
"""The first forward passes of a batch that have draft tokens have this many, and each request in
them at least the second number. A single request has this budget while no draft is measured. By
judgement."""
ROW_PRIOR, ROW_PRIOR_WEIGHT = 0.25, 8.0
"""One more row is expected to cost this many average rows, and the prior counts as this many
squared rows. By judgement: what is never tried is never measured."""

# --- Acceptance: how likely a candidate is to be right

NUM_BINS = 12
"""Confidence is judged in this many bins, which are finer near 0. By judgement."""
PRIOR_WEIGHT = 6.0
"""A prior counts as this many labels. By judgement."""
MODEL_LABEL = 0.1
"""A label of a draft model's candidate has this weight. What softmax says is nearly how often it is
right, and few labels say less. Measured at 368 and 695 places of Qwen2.5-Coder and of SmolLM2: the
log loss of the first candidate is 0.368 and 0.467 as the model says, 0.397 and 0.484 with whole
labels, 0.376 and 0.471 with tenths (3e9c650b)."""
MEMORY = 400.0
"""Old labels of a bin fade beyond this many, so that a new one always counts a little. By
judgement."""
EXPECTED = (0.4, 0.1, 0.05, 0.05)
"""A draft model's first, second, third and a later candidate are right this often, before anything
is learned. By judgement."""
HOPED, HOPED_WEIGHT = (0.7, 0.1, 0.05, 0.05), 16.0
"""The same for a draft model in turns, whose labels cost something, and the number of labels that
this prior counts as. By judgement: the first label must not end its trial (d674739e)."""

# --- Mixing what several sources say

LEAST_OF_LOGIT, MOST_LOGIT = 1e-4, 12.0
"""A likelihood, and its difference from 1, is at least the first value before its logit is taken. A
mixture's logit is at most the second. By judgement."""
MIXING_RATE, MOST_SQUARES = 0.1, 300.0
"""AdaGrad's steps have this rate, and beyond this sum of a weight's squared gradients old ones
fade. By judgement."""
MIXING_WEIGHTS = (
    *(0.1, -0.1, 0.2, -0.2, -0.2, 0.1),  # for the logit of each kind of source
    *(0.4, -0.5, 0.5, -0.5, -0.5, 0.4),  # for each kind that proposes the token
    *(-1.7, -0.1, -0.3, -0.1, -0.1, -1.7),  # for each kind that proposes others
    *(0.9, -1.7),  # for the joint likelihood and the rival
)
"""The first weights. They were learned with SmolLM2 and the shipped draft, and with
Qwen2.5-Coder-1.5B and its 0.5B, on the first 112 and 49 prompts of Spec-Bench. The two agree to
0.4, and each serves the other pair as well. The weights of earlier texts serve for a datastore,
those of a draft model for heads (ffae947e)."""
SPREAD = 0.35
"""If a token follows again with likelihood q, the noise draws the part q ** SPREAD. This fits 1,700
matches of 1 to 24 tokens, sampled at temperatures 0.7 and 1."""

# --- Sources

LEAST_VALUE = 1e-3
"""A less likely node is worth neither a row of the target nor a forward pass of the draft model. By
judgement."""
LONE_SHARE = 0.5
"""A single source may propose a node from this share of LEAST_VALUE on. Labels of seven tasks and
two models: what one source alone proposes comes true 0.6 times as often as it says (abaf7fbf)."""
MAX_MATCH = 24
"""A match in a text, and its continuation, have at most this many tokens. By judgement."""
MAX_PLACES = 256
"""This many of the latest places of a match are counted. By judgement: the time of a search."""
MIN_SHARE = 0.05
"""At least this share of the places of a match continue with a token that is proposed. By
judgement."""
OWN_EXPECTED = (0.4, 0.6, 0.8, 0.9, 0.95)
EARLIER_EXPECTED = (0.2, 0.45, 0.7, 0.85, 0.95)
"""Matches of 1, 2 or 3, 4 to 7, ... tokens continue as before this often, in the same text and in
earlier completions. Measured: 0.37 and 0.18 after one token, 0.67 and 0.45 after two (ffae947e)."""
AFTER_ONE = 0.5
"""A row after a context of one token comes true at this share of what it promises. Measured on
other texts (abaf7fbf)."""
BY_RANK = (0.4, 0.15, 0.08, 0.05, 0.04, 0.03, 0.02, 0.02)
"""A row's candidates are right this often where it has no confidences. By judgement."""
REST_TOKENS, REST_SPAN, REST_LEAST_SPAN, REST_LENGTH = 64, 16, 2, 10
"""A datastore proposes this many tokens. It is searched for a suffix of at most and at least so
many tokens, and a continuation has the last number, as in REST's release (2311.08252)."""
MOST_SEED, LEAST_SEED = 8, 0.5
"""The draft model starts from this many tokens of heads, and all together must be this likely. By
judgement."""

# --- Draft steps: whether to wait for one

MAX_DRAFT = 80
"""A forward pass has at most this many draft tokens. By judgement; the planner decides how many."""
PATIENCE_FOR_STEPS = 1.75
"""A wait for a draft step must yield tokens this many times as fast as decoding. By judgement; what
waits bring is learned (ec8e79c0)."""
NODE_S = 1e-5
"""It takes these seconds to find one more candidate and to send it. Measured."""
HANDOVER_S = 3e-4
"""It takes these seconds to get from one process to the other. Measured: 0.2 ms."""
NO_TREE = 0.25
"""This likelihood counts for a tree of one token, where little else is known. By judgement; without
it a tree was expected to be ten tokens long, and waited for in vain (525de61d)."""
PRIOR_TOKENS, PRIOR_OF_WAITS = 2.0, 1.0
"""Drafts, and waits for drafts, count as having promised and brought this many tokens. By
judgement."""
LEAST_TRUST = 0.05
"""Waiting is believed to bring at least this share of what it promises: what is never tried is
never measured. By judgement."""
READ_WITH_STEP = 16
"""A draft model reads this many new tokens of a text with a step, at negligible cost. By
judgement."""
READ_IN_STEP = 4.0
"""A draft model reads at least this many tokens in the time of a step. Measured: 4 to 16."""
PATIENCE = 3.0
"""A draft may take this many times its expected time before it is given up. By judgement."""
LEAST_WAIT_S = 0.3
"""A draft of unknown cost is expected to take these seconds, and one on the target's cores is
waited for as long. By judgement."""
FRESH_S = 0.002
"""What the drafter made is looked at again after these seconds. By judgement."""

# --- The host's work between two forward passes

LEARNING_SHARE, KEEPING_SHARE = 0.03, 0.01
"""These shares of a forward pass go to finding what the target held likely in its rows, and to
keeping the rows until the next pass. With rows of 151,936 logits these take 40 and 14 us a row
(5f9db554); the shares are by judgement."""
NUM_REHEARSED = 2
"""This many verdicts are rehearsed before a forward pass ends. By judgement."""
FEW_WINDOWS = 16
"""Up to this many continuations are counted faster one by one than by columns. Measured."""

# --- The draft model's tree

LEAVES = (1, 2, 4, 8)
"""A step may expand these numbers of leaves: the drafter has sequence ids for no more. By
judgement."""
CANDIDATES_OF_LEAF = 16
"""Each leaf has this many candidates. Compared with 8, they bring 7% at 25 ms a pass and 8% at 100
(9495f03a, 7 prompts)."""
LEAST_CONFIDENCE = 0.003
"""A candidate is kept from this confidence on. By judgement."""
MAX_EXPANDED, MAX_TREE_DEPTH = 120, 32
"""At most this many nodes are expanded under a text, at most this deep. By judgement; each may be a
leaf, and leaves cost sequence ids."""
TWICE_THE_LEAVES = 1.4
"""Twice the leaves are expected to cost this many times as much, before they are measured. By
judgement."""
FEW_CHAINS, CHAIN_EVERY = 4, 16
"""Each length of chains by mask tokens is tried for this many steps at first, and then in one of so
many. By judgement."""
FIRST_TRUST, NUM_GUESSES = 0.7, 64
"""Guesses by mask tokens are trusted this much before any is compared, and this many are compared.
By judgement."""

# --- Memory

MAX_STORED = 1 << 18
"""Earlier completions and rows of the target hold this many tokens for all owners: as many as the
largest vocabularies. By judgement."""
MAX_CONTEXTS = 1 << 13
"""The rows of this many of the latest contexts of two tokens, and of three, are kept. By
judgement."""
LEAST_STORE = 1 << 10
"""A store counts as at least this many tokens, however little it holds. By judgement."""
