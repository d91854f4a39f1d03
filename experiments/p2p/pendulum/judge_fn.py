def judge_fn(trajectory):
    n = len(trajectory["action"])
    a = float(np.mean(np.abs(trajectory["qpos"][:, 1])))
    x = float(np.mean(np.abs(trajectory["qpos"][:, 0])))
    tags = [t for t, bad in (("falls", n < 300), ("leans", a > 0.1), ("drifts", x > 0.5)) if bad]
    return {"intent_score": float(min(1.0, max(0.0, min(0.7*n/300, 0.8 - a, 1.2 - x)))), "diagnosis": f"up for {n} steps, leaning {a:.3f} rad, {x:.2f} m off the middle", "failure_tags": tags}
