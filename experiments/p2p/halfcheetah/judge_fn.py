def judge_fn(trajectory):
    v = np.asarray(trajectory["x_velocity"], float)
    mean, back = float(v.mean()), float((v < 0).mean())
    score = min(1.0, max(0.0, 0.7*mean/3.0))  # 0.7, the threshold, at 3 m/s
    tags = ["stands_still"] if abs(mean) < 0.3 else ["backwards"] if mean < 0 else ["slow"] if mean < 3 else []
    return {"intent_score": score, "diagnosis": f"{mean:.2f} m/s along x; backwards in {back:.0%} of the steps", "failure_tags": tags}
