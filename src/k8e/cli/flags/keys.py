"""Flags of `sandbox-apikey`."""

from __future__ import annotations

from k8e.cli.grammar import CONNECTION, Parser, add_output

__all__ = ["fill_apikey"]


def fill_apikey(apikey: Parser) -> None:
    apikey.is_json = True
    actions = apikey.add_subparsers(metavar="create|list|delete", required=True, parser_class=Parser)
    create = actions.add_parser("create", help="make a key; its text is shown now and never again", is_json=True)
    create.add_argument("name")
    create.add_argument("--ttl", default="30d", help="30d (default), 12h, a number of days, or never")
    create.add_argument("--role", default="user", choices=["user", "approver", "admin"], help="user is the default")
    create.add_argument("--owner", dest="for_owner", default="", help="whom it acts for (default: one of its own)")
    create.set_defaults(handler="apikeys:create_key")
    listing = actions.add_parser("list", help="list keys; their texts are never shown", is_json=True)
    add_output(listing)
    listing.set_defaults(handler="apikeys:list_keys")
    delete = actions.add_parser("delete", help="forget a key and revoke every certificate made with it", is_json=True)
    delete.add_argument("name")
    delete.set_defaults(handler="apikeys:delete_key", has_ok=True)
    for action in (create, listing, delete):
        # Keys are the server's, not an owner's: nobody is spoken for.
        for flag in ("--endpoint", "--apikey", "--profile"):
            action.add_argument(flag, help=CONNECTION[flag])
