class Balance(RewardFunction):
    def compute(self, obs, action, next_obs, info):
        up = 1.0
        lean = -float(info['qpos'][1])**2*10.0
        middle = -0.1*float(info['qpos'][0])**2
        return up + lean + middle, {"up": up, "lean": lean, "middle": middle}
    @property
    def latex(self): return r"r = 1 - 10\theta^2 - 0.1 x^2"
    @property
    def terms(self): return {'up': 'a step that the pole stands', 'lean': 'price of leaning', 'middle': 'price of being off the middle'}
