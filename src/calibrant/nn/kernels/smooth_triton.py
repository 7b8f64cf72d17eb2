"""The device code of the fused Smooth (Triton): what one program does with its stretch of the map.

See `smooth.py` for the layout [R, H, L]. K taps k0 … k4, LEFT = (K − 1)//2 of them before the point itself.
`if` on a constexpr is decided when compiling, `if edge` when running: they are kept apart on purpose.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice


@triton.jit  # type: ignore[untyped-decorator]
def _tanh(x, FAST: tl.constexpr):  # type: ignore[no-untyped-def]
    if FAST:  # one instruction, 11 bits: more than half precision keeps
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return libdevice.tanh(x)


@triton.jit  # type: ignore[untyped-decorator]
def _prob(z, tau, UPPER: tl.constexpr, FAST: tl.constexpr):  # type: ignore[no-untyped-def]
    if UPPER == 0:
        z = tau * _tanh(z / tau, FAST)
    elif UPPER == 1:
        z = tl.minimum(z, tau)
    elif UPPER == 2:
        z = z / tau
    return tl.maximum(z, 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _slope(z, tau, UPPER: tl.constexpr, FAST: tl.constexpr):  # type: ignore[no-untyped-def]
    if UPPER == 0:
        t = _tanh(z / tau, FAST)
        return tl.where(z > 0, 1 - t * t, 0.0)
    if UPPER == 1:
        return tl.where((z >= 0) & (z <= tau), 1.0, 0.0)  # clamp's own subgradient at both ends
    if UPPER == 2:
        return tl.where(z > 0, 1 / tau, 0.0)
    return tl.where(z > 0, 1.0, 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _tap(i: tl.constexpr, k0, k1, k2, k3, k4):  # type: ignore[no-untyped-def]
    if i == 0:
        return k0
    if i == 1:
        return k1
    if i == 2:
        return k2
    if i == 3:
        return k3
    return k4


@triton.jit  # type: ignore[untyped-decorator]
def _blurred_row(  # type: ignore[no-untyped-def]
    x, base, h, p, mask, edge, H, S, L, tau, k0, k1, k2, k3, k4,
    K: tl.constexpr, PAD: tl.constexpr, UPPER: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Prob averaged along W in row h of the padded map. `edge`: this tile touches a border column."""
    LEFT: tl.constexpr = (K - 1) // 2
    if PAD == 0:
        row = tl.minimum(tl.maximum(h, 0), H - 1)
    elif PAD == 1:
        row = tl.where(h < 0, -h, tl.where(h >= H, 2 * (H - 1) - h, h))
    else:
        row = h
        mask = mask & (h >= 0) & (h < H)
    at = x + base + row * L
    own = _prob(tl.load(at + p, mask=mask, other=0.0).to(tl.float32), tau, UPPER, FAST)
    total = _tap(LEFT, k0, k1, k2, k3, k4) * own
    for j in tl.static_range(K):
        if j != LEFT:
            q = p + (j - LEFT) * S
            # conditions on p, not on the column: then the compiler sees that neighbours share them, and loads wide
            z = tl.load(at + q, mask=mask & (q >= 0) & (q < L), other=0.0).to(tl.float32)
            z = _prob(z, tau, UPPER, FAST)
            if PAD == 0 and (j == LEFT + 1 or j == LEFT - 1):
                z = tl.where((q >= 0) & (q < L), z, own)  # one step beyond the border stands the border itself
            elif PAD != 2:  # noqa: SIM102
                if edge:
                    c = p % S
                    if j > LEFT:
                        out = mask & (q >= L)
                        stand = (L - S + c) if PAD == 0 else (2 * (L - S) + 2 * c - q)
                    else:
                        out = mask & (q < 0)
                        stand = c if PAD == 0 else 2 * c - q
                    v = tl.load(at + stand, mask=out, other=0.0).to(tl.float32)
                    z += tl.where(out, _prob(v, tau, UPPER, FAST), 0.0)
            total += _tap(j, k0, k1, k2, k3, k4) * z
    return total


@triton.jit  # type: ignore[untyped-decorator]
def _tile(R, H, S, L, K: tl.constexpr, RB: tl.constexpr, LB: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which stretch of which rows this program owns: (base, p, mask, edge, first row)."""
    pid = tl.program_id(0)
    across = tl.cdiv(L, LB)
    down = tl.cdiv(H, ROWS)
    start = (pid % across) * LB
    first = ((pid // across) % down) * ROWS
    r = (pid // across // down) * RB + tl.arange(0, RB)[:, None]
    p = start + tl.arange(0, LB)[None, :]
    mask = (r < R) & (p < L)
    edge = (start < ((K - 1) // 2 + 1) * S) | (start + LB > L - (K // 2 + 1) * S)
    return r.to(tl.int64) * H * L, p, mask, edge, first


@triton.jit  # type: ignore[untyped-decorator]
def forward(  # type: ignore[no-untyped-def]
    x, y, R, H, S, L, tau, k0, k1, k2, k3, k4,
    K: tl.constexpr, PAD: tl.constexpr, UPPER: tl.constexpr, FAST: tl.constexpr,
    RB: tl.constexpr, LB: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    LEFT: tl.constexpr = (K - 1) // 2
    base, p, mask, edge, first = _tile(R, H, S, L, K, RB, LB, ROWS)
    a = tl.zeros([RB, LB], tl.float32)
    b, c, d = a, a, a
    if K > 1:
        a = _blurred_row(x, base, first - LEFT, p, mask, edge, H, S, L, tau, k0, k1, k2, k3, k4, K, PAD, UPPER, FAST)
    if K > 2:
        b = _blurred_row(
            x, base, first - LEFT + 1, p, mask, edge, H, S, L, tau, k0, k1, k2, k3, k4, K, PAD, UPPER, FAST
        )
    if K > 3:
        c = _blurred_row(
            x, base, first - LEFT + 2, p, mask, edge, H, S, L, tau, k0, k1, k2, k3, k4, K, PAD, UPPER, FAST
        )
    if K > 4:
        d = _blurred_row(
            x, base, first - LEFT + 3, p, mask, edge, H, S, L, tau, k0, k1, k2, k3, k4, K, PAD, UPPER, FAST
        )
    for h in range(first, tl.minimum(first + ROWS, H)):
        new = _blurred_row(
            x, base, h + K // 2, p, mask, edge, H, S, L, tau, k0, k1, k2, k3, k4, K, PAD, UPPER, FAST
        )  # fmt: skip
        if K == 1:
            out = k0 * new
        elif K == 2:
            out = k0 * a + k1 * new
            a = new
        elif K == 3:
            out = k0 * a + k1 * b + k2 * new
            a, b = b, new
        elif K == 4:
            out = k0 * a + k1 * b + k2 * c + k3 * new
            a, b, c = b, c, new
        else:
            out = k0 * a + k1 * b + k2 * c + k3 * d + k4 * new
            a, b, c, d = b, c, d, new
        tl.store(y + base + h * L + p, out.to(y.dtype.element_ty), mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _spread_row(  # type: ignore[no-untyped-def]
    g, base, h, p, mask, edge, H, S, L, k0, k1, k2, k3, k4, K: tl.constexpr, PAD: tl.constexpr
):
    """The transposed average along W of the gradient's row h; rows outside the map are zero."""
    LEFT: tl.constexpr = (K - 1) // 2
    RIGHT: tl.constexpr = K // 2
    mask = mask & (h >= 0) & (h < H)
    at = g + base + h * L
    own = tl.load(at + p, mask=mask, other=0.0).to(tl.float32)
    total = _tap(LEFT, k0, k1, k2, k3, k4) * own
    for j in tl.static_range(K):
        if j != LEFT:
            q = p + (LEFT - j) * S
            z = tl.load(at + q, mask=mask & (q >= 0) & (q < L), other=0.0).to(tl.float32)
            total += _tap(j, k0, k1, k2, k3, k4) * z
    if PAD == 0 and K == 2:  # what the border column stood in for comes back to it
        total += tl.where(p + S >= L, k1 * own, 0.0)
    elif PAD != 2:  # noqa: SIM102
        if edge:
            c = p % S
            for u in tl.static_range(1, LEFT + 1):
                here = mask & (p - c == (0 if PAD == 0 else u * S))
                for j in tl.static_range(K):
                    if LEFT - u - j >= 0:
                        z = tl.load(at + c + (LEFT - u - j) * S, mask=here, other=0.0).to(tl.float32)
                        total += _tap(j, k0, k1, k2, k3, k4) * z
            for u in tl.static_range(RIGHT):
                here = mask & (p - c == (L - S if PAD == 0 else L - 2 * S - u * S))
                for j in tl.static_range(K):
                    if u - j + LEFT < 0:
                        z = tl.load(at + c + L + (u - j + LEFT) * S, mask=here, other=0.0).to(tl.float32)
                        total += _tap(j, k0, k1, k2, k3, k4) * z
    return total


@triton.jit  # type: ignore[untyped-decorator]
def backward(  # type: ignore[no-untyped-def]
    x, g, dx, R, H, S, L, tau, k0, k1, k2, k3, k4,
    K: tl.constexpr, PAD: tl.constexpr, UPPER: tl.constexpr, FAST: tl.constexpr,
    RB: tl.constexpr, LB: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    LEFT: tl.constexpr = (K - 1) // 2
    RIGHT: tl.constexpr = K // 2
    base, p, mask, edge, first = _tile(R, H, S, L, K, RB, LB, ROWS)
    a = tl.zeros([RB, LB], tl.float32)
    b, c, d = a, a, a
    if K > 1:
        a = _spread_row(g, base, first - RIGHT, p, mask, edge, H, S, L, k0, k1, k2, k3, k4, K, PAD)
    if K > 2:
        b = _spread_row(g, base, first - RIGHT + 1, p, mask, edge, H, S, L, k0, k1, k2, k3, k4, K, PAD)
    if K > 3:
        c = _spread_row(g, base, first - RIGHT + 2, p, mask, edge, H, S, L, k0, k1, k2, k3, k4, K, PAD)
    if K > 4:
        d = _spread_row(g, base, first - RIGHT + 3, p, mask, edge, H, S, L, k0, k1, k2, k3, k4, K, PAD)
    for h in range(first, tl.minimum(first + ROWS, H)):
        new = _spread_row(g, base, h + LEFT, p, mask, edge, H, S, L, k0, k1, k2, k3, k4, K, PAD)
        if K == 1:
            out = k0 * new
        elif K == 2:
            out = k1 * a + k0 * new
            if PAD == 0:
                out += tl.where(h == H - 1, k1 * new, 0.0)
            elif PAD == 1 and h == H - 2:
                last = _spread_row(g, base, H - 1, p, mask, edge, H, S, L, k0, k1, k2, k3, k4, K, PAD)
                out += k1 * last
            a = new
        elif K == 3:
            out = k2 * a + k1 * b + k0 * new
            a, b = b, new
        elif K == 4:
            out = k3 * a + k2 * b + k1 * c + k0 * new
            a, b, c = b, c, new
        else:
            out = k4 * a + k3 * b + k2 * c + k1 * d + k0 * new
            a, b, c, d = b, c, d, new
        if PAD != 2 and K > 2:
            for u in tl.static_range(1, LEFT + 1):
                if h == (0 if PAD == 0 else u):
                    for i in tl.static_range(K):
                        if LEFT - u - i >= 0:
                            out += _tap(i, k0, k1, k2, k3, k4) * _spread_row(
                                g, base, LEFT - u - i, p, mask, edge, H, S, L, k0, k1, k2, k3, k4, K, PAD
                            )
            for u in tl.static_range(RIGHT):
                if h == (H - 1 if PAD == 0 else H - 2 - u):
                    for i in tl.static_range(K):
                        if u - i + LEFT < 0:
                            out += _tap(i, k0, k1, k2, k3, k4) * _spread_row(
                                g, base, H + u - i + LEFT, p, mask, edge, H, S, L, k0, k1, k2, k3, k4, K, PAD
                            )
        z = tl.load(x + base + h * L + p, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx + base + h * L + p, (out * _slope(z, tau, UPPER, FAST)).to(dx.dtype.element_ty), mask=mask)
