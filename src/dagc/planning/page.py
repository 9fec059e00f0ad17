def plan_page(*a):
    return ""
