# SPDX-License-Identifier: Apache-2.0
"""Fits the coefficients of vmath_body.h and prints them as C hexadecimal floats.

Every fit is a weighted least-squares problem on Chebyshev points, re-weighted (Lawson) until the error levels
out to the minimax one. Coefficients are rounded to fp32 one after the other, lowest power first, and the
others are fitted again, so that the rounding of one is made up for by the rest.

Usage: python3 fit_vmath.py        (needs numpy and mpmath)
"""
import mpmath as mp
import numpy as np

mp.mp.dps = 40


def points(a, b, n=1200):
    k = np.arange(n)
    return (a + b) / 2 + (b - a) / 2 * np.cos(np.pi * (k + 0.5) / n)


def lawson(basis, target, weight, rounds=400):
    """Coefficients c with minimal max |weight * (basis c - target)|."""
    w = np.ones(len(target))
    best, best_error = None, np.inf
    for _ in range(rounds):
        s = np.sqrt(w) * weight
        c = np.linalg.lstsq(basis * s[:, None], target * s, rcond=None)[0]
        e = np.abs(weight * (basis @ c - target))
        if e.max() < best_error:
            best, best_error = c, e.max()
        w = w * (e / e.max() + 1e-12)
        w /= w.sum()
    return best, best_error


def fit(name, f, weight, a, b, powers, var=None):
    """f(x) = sum c_i var(x)^powers[i], error times weight(x) minimal; f works on mpf."""
    x = points(a, b)
    t = x if var is None else var(x)
    target = np.array([float(f(mp.mpf(float(v)))) for v in x])
    wt = np.array([float(weight(mp.mpf(float(v)))) for v in x])
    basis = np.stack([t.astype(np.float64) ** p for p in powers], axis=1)
    fixed = np.zeros(len(powers))
    rest = target.copy()
    for i in range(len(powers)):
        c, _ = lawson(basis[:, i:], rest, wt, 400 if i == 0 else 60)
        fixed[i] = float(np.float32(c[0]))
        rest = rest - basis[:, i] * fixed[i]
    error = np.abs(wt * rest).max()
    print(f"{name}: weighted error {error:.3g} = 2^{np.log2(error):.2f}")
    for p, c in zip(powers, fixed):
        print(f"  x^{p}: {float(c).hex()} = {c:.9g}")
    return error


LN2 = mp.log(2)


def main():
    half = float(LN2) / 2 * 1.0001
    # exp(r) = 1 + r + r^2 P(r)
    fit("exp", lambda r: (mp.exp(r) - 1 - r) / r**2, lambda r: r**2 / mp.exp(r), -half, half, range(0, 5))
    hi = np.float32(0.693145751953125)
    print("ln2:", float(hi).hex(), float(np.float32(LN2 - mp.mpf(float(hi)))).hex())
    # log(1 + f) = f - f^2/2 + f^3 P(f)
    lo, up = float(mp.sqrt(mp.mpf(1) / 2)) - 1, float(mp.sqrt(2)) - 1
    fit("log", lambda f: (mp.log1p(f) - f + f * f / 2) / f**3, lambda f: abs(f**3 / mp.log1p(f)), lo, up, range(0, 8))
    # tanh(x) = x + x^3 P(x^2)
    fit("tanh", lambda x: (mp.tanh(x) - x) / x**3, lambda x: abs(x**3 / mp.tanh(x)), 0.01, 0.63, range(0, 5),
        lambda x: x * x)
    # erf(z) = z + z P(z^2)
    fit("erf", lambda z: mp.erf(z) / z - 1, lambda z: abs(z / mp.erf(z)), 0.01, 0.76, range(0, 6), lambda z: z * z)
    # Phi(-t) exp(t^2/2) = u Q(u), u = 1 / (1 + c t)
    c = float(np.float32(0.35))

    def scaled(t):
        return mp.erfc(t / mp.sqrt(2)) / 2 * mp.exp(t * t / 2) * (1 + c * t)

    print("c:", c.hex())
    fit("phi", scaled, lambda t: 1 / scaled(t), 0, 15, range(0, 9), lambda t: 1 / (1 + c * t))


if __name__ == "__main__":
    main()
