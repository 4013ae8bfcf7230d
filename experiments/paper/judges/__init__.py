"""Verdicts on the paper's claims: functions that judge a claim by the records of its experiment."""
