"""Epsilons that papers and independent computations report, reproduced."""

import pytest

from gnomon.accounting import Account, Poisson, Shuffled, TruncatedPoisson, epsilon, noise_multiplier

# q = 0.025, delta = 1e-5. steps, sigma, then epsilon: paper, RDP classic, RDP improved, limit, PLD,
# replace-one, no amplification
TABLE = [
    (1200, 2, 2.41, 2.4086, 2.0517, 1.8229, 1.877, 3.72, 14.83),
    (1200, 4, 1.09, 1.0981, 0.8944, 0.8050, 0.816, 1.70, 6.33),
    (1200, 6, 0.72, 0.7160, 0.5678, 0.5120, 0.516, 1.08, 3.94),
    (1200, 8, 0.53, 0.5319, 0.4136, 0.3730, 0.375, 0.79, 2.84),
    (1200, 10, 0.42, 0.4232, 0.3240, 0.2921, 0.294, 0.62, 2.21),
    (1200, 14, 0.30, 0.3006, 0.2246, 0.2021, 0.203, 0.43, 1.52),
    (1200, 18, 0.23, 0.2331, 0.1710, 0.1536, 0.154, 0.33, 1.15),
    (3200, 2, 4.0, 3.9855, 3.4974, 3.1644, 3.219, 6.59, 28.4),
    (3200, 4, 1.8, 1.8063, 1.5182, 1.3802, 1.391, 2.94, 11.5),
    (3200, 6, 1.18, 1.1751, 0.9626, 0.8751, 0.880, 1.87, 7.00),
    (3200, 10, 0.69, 0.6933, 0.5492, 0.4983, 0.500, 1.06, 3.85),
    (3200, 14, 0.49, 0.4919, 0.3809, 0.3449, 0.346, 0.73, 2.62),
    (3200, 18, 0.38, 0.3813, 0.2900, 0.2622, 0.263, 0.56, 1.98),
    (3200, 22, 0.31, 0.3113, 0.2334, 0.2106, 0.211, 0.45, 1.58),
    (3200, 26, 0.26, 0.2630, 0.1948, 0.1755, 0.176, 0.37, 1.32),
    (3200, 30, 0.23, 0.2277, 0.1668, 0.1501, 0.150, 0.32, 1.12),
]
ROWS = pytest.mark.parametrize(
    ("steps", "sigma", "paper", "classic", "improved", "limit", "pld", "replace", "plain"), TABLE
)


@ROWS
def test_the_table_of_two_papers(steps, sigma, paper, classic, improved, limit, pld, replace, plain):
    def at(**how):
        how = {"sample_rate": 0.025} | how if "sampler" not in how else how
        return epsilon(noise_multiplier=sigma, steps=steps, delta=1e-5, **how)

    assert at(accountant="rdp-classic") == pytest.approx(paper, abs=0.0151 if paper in (4.0, 1.8) else 0.0085)
    assert at(accountant="rdp-classic") == pytest.approx(classic, abs=5e-4)
    assert at(accountant="rdp") == pytest.approx(improved, abs=1e-3)
    assert at(accountant="gdp") == pytest.approx(limit, abs=5e-4)
    assert at() == pytest.approx(pld, abs=2e-3)
    assert at(adjacency="zero-out") == at()
    assert at(adjacency="replace-one") == pytest.approx(replace, abs=0.03)
    assert at(sampler=Shuffled(40)) == pytest.approx(plain, abs=0.06 if plain > 11 and steps > 1200 else 0.01)


@pytest.mark.parametrize(("sigma", "replaced"), [(2, 37.6), (4, 14.8), (6, 8.94), (8, 6.33), (10, 4.87), (18, 2.48)])
def test_replace_one_doubles_what_a_record_moves_in_a_shuffled_epoch(sigma, replaced):
    found = epsilon(noise_multiplier=sigma, steps=1200, delta=1e-5, sampler=Shuffled(40), adjacency="replace-one")
    assert found == pytest.approx(replaced, abs=0.06)


@pytest.mark.parametrize(
    ("size", "sigma", "classic", "pld"),
    [
        (20_000, 2, 1.664, 1.269),
        (20_000, 6, 0.503, 0.353),
        (20_000, 18, 0.164, 0.106),
        (50_000, 2, 1.030, 0.761),
        (50_000, 8, 0.235, 0.156),
        (50_000, 18, 0.104, 0.064),
    ],
)
def test_other_sizes_of_data(size, sigma, classic, pld):
    run = {"noise_multiplier": sigma, "steps": 30 * size // 250, "delta": 1e-5, "sample_rate": 250 / size}
    assert epsilon(**run, accountant="rdp-classic") == pytest.approx(classic, abs=1e-3)
    assert epsilon(**run) == pytest.approx(pld, abs=2e-3)


@pytest.mark.parametrize(
    ("rate", "steps", "target", "sigma"),
    [
        (0.02, 500, 1.5, 1.413),
        (0.02, 1000, 2.0, 1.484),
        (0.02, 5000, 4.0, 1.697),
        (1000 / 73257, 500, 4.0, 0.740),
        (1000 / 73257, 2000, 2.5, 1.238),
    ],
)
def test_noise_multipliers_of_a_paper(rate, steps, target, sigma):
    found = noise_multiplier(target_epsilon=target, steps=steps, delta=1e-5, sample_rate=rate)
    assert found == pytest.approx(sigma, rel=2e-3)


MNIST = {"noise_multiplier": 1.1, "steps": 3200, "delta": 1e-5}


def test_a_usual_image_run_under_every_scheme():
    rate = 256 / 60_000
    assert epsilon(**MNIST, sample_rate=rate) == pytest.approx(1.0796, abs=5e-4)
    assert epsilon(**MNIST, sample_rate=rate, adjacency="replace-one") == pytest.approx(1.831, abs=2e-3)
    assert epsilon(**MNIST, sample_rate=rate, accountant="rdp") == pytest.approx(1.232, abs=2e-3)
    assert epsilon(**MNIST | {"steps": 14}, sampler=Shuffled(1)) == pytest.approx(19.65, abs=0.01)


@pytest.mark.parametrize(("largest", "expected"), [(256, 6.41), (288, 3.25), (320, 1.111), (352, 1.083)])
def test_truncation_costs_little_once_full_batches_are_rare(largest, expected):
    sampler = TruncatedPoisson(256 / 60_000, max_batch_size=largest, dataset_size=60_000)
    assert epsilon(**MNIST, sampler=sampler) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("sigma", "steps"), [(2, 268), (3, 702), (1.5, 114), (1, 6)])
def test_steps_that_a_budget_of_two_affords(sigma, steps):
    assert Account(Poisson(0.05), sigma, accountant="rdp").affordable(2.0, 1e-5) == steps
