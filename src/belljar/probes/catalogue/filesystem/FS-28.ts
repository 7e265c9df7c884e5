/// <reference path="{{HOST_CANARY_TS}}" />
// @ts-ignore
import data from "{{HOST_CANARY_PATH}}";
console.log(String(data));
