from soak_table import soak_table


def test_each_count_has_a_row_and_the_name_stands_once():
    mixed = ("mixed calls", {"gets": 1234567, "wrong bytes": 0})
    assert soak_table([mixed, ("fork", {"ok": "yes"})]) == [
        "test         count            value",
        "mixed calls  gets         1,234,567",
        "             wrong bytes          0",
        "fork         ok                 yes",
    ]


def test_scale_is_one_unless_soaking(request, soak_scale):
    soaking = request.config.getoption("--soak")
    assert soak_scale > 1 if soaking else soak_scale == 1
