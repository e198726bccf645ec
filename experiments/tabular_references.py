"""Non-private references for the recipes on tables: logistic regression and gradient boosting of scikit-learn.

    GNOMON_DATA=FOLDER python experiments/tabular_references.py

Every split draws its own private records, as `gnomon reproduce recipes-tabular` does; the printed numbers are means
over the splits. Nothing here is private.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, roc_auc_score

from gnomon.data import Records, load, public_private
from gnomon.features import Facts, build

PRIVATE = {"adult": 32461, "compas": 4800}
"""The number of private records of each table."""


def scores(classifier: object, train: Records, test: Records) -> tuple[float, float]:
    """Return the test accuracy and the area under the ROC curve of a classifier."""
    classifier.fit(train.inputs.numpy(), train.targets.numpy())  # type: ignore[attr-defined]
    margins = classifier.predict_proba(test.inputs.numpy())[:, 1]  # type: ignore[attr-defined]
    labels = test.targets.numpy()
    return accuracy_score(labels, margins > 0.5), roc_auc_score(labels, margins)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="folder of the official files (default: GNOMON_DATA)")
    parser.add_argument("--splits", type=int, default=5, help="number of splits")
    args = parser.parse_args()
    for name, private in PRIVATE.items():
        source = load(name, args.data_dir)
        binned = build("binned", Facts(source.input_shape, columns=source.columns))
        results: dict[str, list[tuple[float, float]]] = {}
        for seed in range(args.splits):
            train = public_private(source.train, private=private, public=100, seed=seed).private
            mapped = [Records(binned(part.inputs), part.targets) for part in (train, source.test)]
            for label, classifier, (fitted, test) in (
                ("logistic regression, columns", LogisticRegression(max_iter=5000), (train, source.test)),
                ("logistic regression, binned", LogisticRegression(C=100.0, max_iter=5000), mapped),
                ("gradient boosting, columns", HistGradientBoostingClassifier(random_state=0), (train, source.test)),
            ):
                results.setdefault(label, []).append(scores(classifier, fitted, test))
        for label, pairs in results.items():
            accuracy, area = (statistics.fmean(values) for values in zip(*pairs, strict=True))
            print(f"{name:<8} {label:<30} accuracy {100 * accuracy:.1f} %  AUC {area:.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
