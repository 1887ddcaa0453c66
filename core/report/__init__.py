"""What a person reads of a job: sentences, and pages to come, made from plain records.

Pure functions of a `JobRecord`. Every sentence is made in Python, where it can be tested, never in a page's script;
no other room needs this one to run.
"""
