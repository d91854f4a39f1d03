class CarefulSpeed(RewardFunction):
    def compute(self, obs, action, next_obs, info):
        speed = min(float(info["x_velocity"]), 1.0)
        ctrl = -0.5*float(np.square(action).sum())
        return speed + ctrl, {"speed": speed, "ctrl": ctrl}
    @property
    def latex(self): return r"r = \min(v_x, 1) - 0.5 \|a\|^2"
    @property
    def terms(self): return {"speed": "forward velocity, up to 1 m/s", "ctrl": "price of torques"}
