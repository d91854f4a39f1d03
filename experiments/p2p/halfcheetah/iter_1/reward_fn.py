class SmallTorques(RewardFunction):
    def compute(self, obs, action, next_obs, info):
        ctrl = -float(np.square(action).sum())
        return ctrl, {"ctrl": ctrl}
    @property
    def latex(self): return r"r = -\|a\|^2"
    @property
    def terms(self): return {"ctrl": "price of torques"}
