"""A Belljar that is somewhere else: `belljar serve`, spoken to over HTTP.

belljar.run("print(1)", url="https://belljar.example", key="blj_…")
belljar.Sandbox(url="https://belljar.example", key="blj_…")
"""

from belljar.client.connection import UnencryptedKey as UnencryptedKey
from belljar.client.remote import Belljar as Belljar
