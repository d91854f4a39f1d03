class Speed(RewardFunction):
    def compute(self, obs, action, next_obs, info):
        speed = float(info["x_velocity"])
        ctrl = -0.1*float(np.square(action).sum())
        return speed + ctrl, {"speed": speed, "ctrl": ctrl}
    @property
    def latex(self): return r"r = v_x - 0.1 \|a\|^2"
    @property
    def terms(self): return {"speed": "forward velocity", "ctrl": "price of torques"}
