#!/usr/bin/env python3
"""Writes five.table and five_wide.table: layouts of data, tensor, pipeline, expert and context parallelism for parity.sh.

five.table is a pairwise cover: any two settings that fit together on at most 8 ranks meet in one of its runs, each compared
with its model on one rank. five_wide.table has layouts drawn at random, some of 9 to 16 ranks.
    five_cover.py          writes both files beside itself
    five_cover.py --check  counts the pairs that five.table does not have
"""
import itertools
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
# A model is a configuration, settings for all its runs, and the number of blocks that bounds tp and etp.
MODELS = {
    'odd': ('spine.yaml', '', 3),
    'tied_fp64': ('spine.yaml', 'model.tie_word_embeddings=true shards=5 numerics.dtype=fp64 ', 5),
    'window_bf16': ('spine.yaml', 'numerics.dtype=bf16 model.sliding_window=5 model.norm_topk_prob=false model.first_k_dense_replace=0 shards=4 ', 4),
    'kv1_tied': ('spine.yaml', 'model.num_key_value_heads=1 model.tie_word_embeddings=true shards=4 ', 4),
    'masked': ('spine.yaml', 'data.train=docs.u16 data.document_mask=true data.eod_token=0 model.sliding_window=6 shards=4 ', 4),
    'even': ('even.yaml', 'shards=4 ', 4),
}
SEQUENCES = {'spine.yaml': 5, 'even.yaml': 8}
VOCAB = {'spine.yaml': 97, 'even.yaml': 64}
AXES = {
    'model': list(MODELS),
    'tp': [1, 2, 3, 4],
    'cp': [1, 2, 3],
    'comm': ['allgather', 'a2a'],
    'pp': [1, 2, 3],
    'dp': [1, 2, 3],
    'ep': [1, 2, 3, 4],
    'etp': [1, 2, 3],
    'sch': ['1f1b', 'all_forward', 'interleaved', 'zero_bubble'],
    'chunks': [1, 2, 3],
    'mb': [1, 2, 3, 5],
    'shard': ['true', 'false', 'parameters'],
    'dev': ['cpu', 'cpu-lag'],
    'guard': ['false', 'true'],
}
HEAD = '''config %s
tokens tokens.u16 %d 200
tokens valid.u16 %d 60
tokens docs.u16 6 200
'''
SHORT = {'tp': 'layout.tp', 'cp': 'layout.cp', 'pp': 'layout.pp', 'ep': 'layout.ep', 'etp': 'layout.etp', 'chunks': 'layout.chunks',
         'mb': 'train.micro_batch_size', 'sch': 'schedule.name', 'shard': 'optimizer.shard', 'dev': 'device.name',
         'guard': 'memory.guard', 'shards': 'numerics.shards', 'comm': 'layout.cp_comm_type'}


def ranks(c):
    return c['tp'] * c['cp'] * c['pp'] * c['dp']


def valid(c, most):
    blocks = MODELS[c['model']][2]
    stage = ranks(c) // c['pp']
    return (ranks(c) <= most and c['tp'] <= blocks and c['etp'] <= blocks and stage % (c['ep'] * c['etp']) == 0
            and (c['comm'] == 'allgather' or c['cp'] > 1) and (c['chunks'] == 1 or (c['sch'] == 'interleaved' and c['pp'] > 1)))


def layouts(most):
    layout = ['model', 'tp', 'cp', 'comm', 'pp', 'dp', 'ep', 'etp', 'sch', 'chunks', 'mb']
    for values in itertools.product(*(AXES[a] for a in layout)):
        c = dict(zip(layout, values))
        if valid(c, most):
            yield c


def pairs(c):
    return {(a, c[a], b, c[b]) for a, b in itertools.combinations(c, 2)}


def finish(c, rng):
    c = {**c, **{a: rng.choice(AXES[a]) for a in ('shard', 'dev', 'guard')}}
    if c['shard'] == 'parameters' and c['pp'] > 1 and 'tie_word' in MODELS[c['model']][1]:
        c['shard'] = 'true'  # stages that share an embedding keep it whole
    return c


def wanted(most):
    """Pairs that some layout has; switches meet everything."""
    found = set()
    for c in layouts(most):
        found |= pairs(c)
    switches = ('shard', 'dev', 'guard')
    single = {(a, v) for p in found for a, v in ((p[0], p[1]), (p[2], p[3]))}
    for s in switches:
        found |= {(a, x, s, v) for a, x in single for v in AXES[s]}
    for s, t in itertools.combinations(switches, 2):
        found |= {(s, v, t, w) for v in AXES[s] for w in AXES[t]}
    return found


def cover(most, rng):
    candidates = list(layouts(most))
    left, chosen = wanted(most), []
    while left:
        rng.shuffle(candidates)
        best = max(candidates[:4000], key=lambda c: (len(pairs(c) & left) - 0.7 * ranks(c), -ranks(c)))
        full = max((finish(best, rng) for _ in range(12)), key=lambda c: len(pairs(c) & left))
        if not pairs(full) & left:
            best = max(candidates, key=lambda c: len(pairs(c) & left))
            full = max((finish(best, rng) for _ in range(60)), key=lambda c: len(pairs(c) & left))
        left -= pairs(full)
        chosen.append(full)
    return chosen


def line(c):
    words = [f'{a}={c[a]}' for a in ('tp', 'cp', 'pp', 'ep', 'etp', 'chunks') if c[a] != 1]
    words += [f'mb={c["mb"]}', f'sch={c["sch"]}']
    words += [w for w, on in (('comm=a2a', c['comm'] == 'a2a'), ('shard=false', c['shard'] == 'false'), ('optimizer.shard_parameters=true', c['shard'] == 'parameters'), ('dev=cpu-lag', c['dev'] == 'cpu-lag'), ('guard=true', c['guard'] == 'true')) if on]
    return f'{ranks(c)} ' + ' '.join(words)


def write(name, title, chosen):
    text = title
    for s, key in SHORT.items():
        text += f'short {s} {key}\n'
    config = ''
    for model, (file, sets, _) in MODELS.items():
        if file != config:
            text += HEAD % (file, VOCAB[file], VOCAB[file])
            config = file
        text += f'group {model} {sets}data.valid={"docs" if model == "masked" else "valid"}.u16\n1 mb={SEQUENCES[file]}\n'
        text += ''.join(sorted(line(c) + '\n' for c in chosen if c['model'] == model))
    with open(os.path.join(HERE, name), 'w', encoding='ascii') as f:
        f.write(text)


def read(name):
    model = ''
    with open(os.path.join(HERE, name), encoding='ascii') as f:
        for text in f:
            word = text.split('#')[0].split()
            if word and word[0] == 'group':
                model = word[1]
            if not word or not word[0].isdigit():
                continue
            kv = dict(w.split('=') for w in word[1:])
            c = {'model': model, 'tp': int(kv.get('tp', 1)), 'cp': int(kv.get('cp', 1)), 'comm': kv.get('comm', 'allgather'), 'pp': int(kv.get('pp', 1)), 'dp': 1, **{a: int(kv.get(a, 1)) for a in ('ep', 'etp')},
                 'sch': kv.get('sch', '1f1b'), 'chunks': int(kv.get('chunks', 1)), 'mb': int(kv['mb']), 'shard': 'parameters' if 'optimizer.shard_parameters' in kv else kv.get('shard', 'true'),
                 'dev': kv.get('dev', 'cpu'), 'guard': kv.get('guard', 'false')}
            c['dp'] = int(word[0]) // ranks(c)
            yield c


def wide(rng):
    chosen = []
    while len(chosen) < 48:
        most = 8 if len(chosen) < 32 else 16
        c = finish({a: rng.choice(v) for a, v in AXES.items()}, rng)
        if valid(c, most) and (ranks(c) >= 3 if most == 8 else ranks(c) in (9, 12, 16)):
            chosen.append(c)
    return chosen


def main():
    if sys.argv[1:] == ['--check']:
        left = wanted(8)
        for c in read('five.table'):
            left -= pairs(c)
        print(f'{len(left)} pairs are missing', *sorted(map(str, left))[:10], sep='\n')
        return len(left) > 0
    rng = random.Random(5)
    best = min((cover(8, random.Random(i)) for i in range(4)), key=lambda chosen: sum(ranks(c) + 3 for c in chosen))
    write('five.table', '# Five dimensions. Any two settings that fit on 8 ranks meet in a run. Written by five_cover.py; five_wide.table has more.\n', best)
    write('five_wide.table', '# Five dimensions, drawn at random, up to 16 ranks. Written by five_cover.py. Run it by: ./run test -C full -L full\n', wide(rng))
    return 0


sys.exit(main())
